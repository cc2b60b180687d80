"""The one folder where the embedded default keeps everything, and its lock."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.progress import Report


def default_home() -> Path:
    chosen = os.environ.get("DECISION_PROXY_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache").absolute() / "decision-proxy"


def log_file(home: Path, name: str) -> Path:
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{name}.log"


@contextmanager
def exclusive(home: Path, report: Report) -> Iterator[None]:
    """One set-up at a time, also between processes; a killed one lets go."""
    with lock_file(home) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.step("Waiting for another set-up on this machine to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lock_file(home: Path) -> TextIO:
    try:
        home.mkdir(parents=True, exist_ok=True)
        return (home / "setup.lock").open("w")
    except OSError as error:
        raise SetupError(
            f"Nothing can be written to {home} ({error.strerror}); "
            "set DECISION_PROXY_HOME to a folder of yours."
        ) from error


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A folder to fill; it gets its name only once it is complete."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(target)
