"""pip in an environment of ours: its words go to a log, and a failure becomes one sentence."""

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.logs import tail, telling_lines
from decision_proxy.embedded.process import GuardedProcess
from decision_proxy.embedded.progress import Report

TORCH_INDEX = "DECISION_PROXY_TORCH_INDEX_URL"
TICK_S = 0.5
# what a shell or pip's settings may say about where to install is not for our environment
HERE = {"PIP_USER": "0", "PIP_TARGET": "", "PIP_PREFIX": ""}
WORKING_ON = re.compile(r"^\s*(?:Collecting|Downloading|Processing)\s+(?:\S*/)?([^\s/]+)")
WRITING = "Installing collected packages"
NO_NETWORK = re.compile(
    r"name resolution|Name or service not known|Max retries|ConnectionError|Connection(?: to \S+)? "
    r"(?:refused|reset|broken|timed out)|NewConnectionError|Network is unreachable|ReadTimeout|"
    r"ProxyError|SSLError|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH"
)
NO_RELEASE = re.compile(r"No matching distribution found for (\S+)")


def run_logged(
    command: Sequence[str | Path],
    *,
    log: Path,
    report: Report,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """SetupError when the command fails, with its reason and where the full log lies."""
    since = log.stat().st_size if log.exists() else 0
    begun = time.monotonic()
    guarded = GuardedProcess(command, log=log, folder=folder, environment=environment, grace_s=5)
    with guarded as process:
        while (code := process.wait(TICK_S)) is None:
            report.update(f"{time.monotonic() - begun:.0f} s {working_on(tail(log, since=since))}")
    if code != 0:
        raise SetupError(
            f"{explain_failure(tail(log, since=since))} The full log: {log}. "
            "Run the same command again to go on from here."
        )


def create_environment(folder: Path, *, log: Path, report: Report) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command: list[str | Path] = [sys.executable, "-I", "-m", "venv", folder]
    run_logged(command, log=log, report=report)


def pip(python: Path, *arguments: str | Path, log: Path, report: Report) -> None:
    quiet = ("--disable-pip-version-check", "--no-input")
    command: list[str | Path] = [python, "-I", "-m", "pip", *quiet, *arguments]
    run_logged(command, log=log, report=report, environment={**os.environ, **HERE})


def torch_index_arguments() -> list[str]:
    url = os.environ.get(TORCH_INDEX)
    return ["--extra-index-url", url] if url else []


def working_on(lines: Sequence[str]) -> str:
    for line in reversed(lines):
        if line.startswith(WRITING):
            return "writing the packages"
        if match := WORKING_ON.match(line):
            return match[1]
    return ""


def explain_failure(lines: list[str]) -> str:
    text = "\n".join(lines)
    if "No space left on device" in text:
        return "The disk is full; free some, or set DECISION_PROXY_HOME to a folder elsewhere."
    if "ensurepip is not available" in text:
        return "Python's venv module is incomplete here; install the package python3-venv."
    if match := NO_RELEASE.search(text):
        if NO_NETWORK.search(text):
            return no_network()
        return no_release(match[1])
    if NO_NETWORK.search(text):
        return no_network()
    reason = " | ".join(line.strip() for line in telling_lines(lines, most=2))
    return f"A step of the set-up failed: {reason or 'it said nothing'}."


def no_network() -> str:
    return (
        "The package index cannot be reached; check the network, HTTPS_PROXY, and pip's settings "
        "(`pip config list`)."
    )


def no_release(requirement: str) -> str:
    version = ".".join(platform.python_version_tuple()[:2])
    machine = f"Python {version} on {platform.machine()}"
    advice = ""
    if requirement.startswith("torch=="):
        advice = f" Set {TORCH_INDEX} to an index that has it, such as PyTorch's own for the CPU."
    return f"pip's package index has no {requirement} for {machine}.{advice}"
