import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE_SERVER = Path(__file__).parent / "fake_server.py"


class Recorder:
    """A report that remembers; `on_step` lets a test act at that moment."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.updates: list[str] = []
        self.dones: list[str] = []
        self.on_step: Callable[[str], None] = lambda _text: None

    def step(self, text: str) -> None:
        self.steps.append(text)
        self.on_step(text)

    def update(self, text: str) -> None:
        self.updates.append(text)

    def done(self, text: str) -> None:
        self.dones.append(text)


@pytest.fixture
def report() -> Recorder:
    return Recorder()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all the disk and memory one can want."""
    machine = "decision_proxy.embedded.machine"
    monkeypatch.setattr(f"{machine}.free_disk_gib", lambda _folder: 500.0)
    monkeypatch.setattr(f"{machine}.available_memory_gib", lambda: 64.0)


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """Called like vLLM's python, it is a small HTTP server."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_SERVER}" "$@"\n')
    python.chmod(0o755)
    return python
