import subprocess
import sys
from pathlib import Path

import pytest

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.home import appearing, default_home, exclusive, log_file
from tests.embedded.conftest import Recorder

HOLD_THE_LOCK = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/users/me/.cache/decision-proxy"),
        ({"XDG_CACHE_HOME": "/big/cache"}, "/big/cache/decision-proxy"),
        ({"XDG_CACHE_HOME": "/big/cache", "DECISION_PROXY_HOME": "/mine"}, "/mine"),
        ({"DECISION_PROXY_HOME": "~/models"}, "/users/me/models"),
    ],
)
def test_the_home_is_in_the_cache_or_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "DECISION_PROXY_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/users/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_home() == Path(expected)


def test_a_second_setup_says_that_it_waits_and_goes_on_when_the_first_is_over(
    home: Path, report: Recorder
) -> None:
    home.mkdir()
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(home / "setup.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        release = other.stdin.close
        report.on_step = lambda _text: release()
        with exclusive(home, report):
            assert report.steps == ["Waiting for another set-up on this machine to finish"]


def test_a_lone_setup_does_not_wait(home: Path, report: Recorder) -> None:
    with exclusive(home, report):
        pass
    with exclusive(home, report):
        pass
    assert report.steps == []


def test_a_home_that_cannot_be_written_to_is_told(home: Path, report: Recorder) -> None:
    home.write_text("a file where the folder should be")
    with (
        pytest.raises(SetupError, match=r"written to .*home \(File exists\); set DECISION_PROXY"),
        exclusive(home, report),
    ):
        pass


def test_a_folder_appears_only_when_it_is_complete(home: Path) -> None:
    target = home / "model"
    with pytest.raises(FileNotFoundError), appearing(target) as folder:
        (folder / "half").rename(folder / "not there" / "half")
    assert not target.exists()
    with appearing(target) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").touch()
    assert [file.name for file in target.iterdir()] == ["whole"]
    assert [entry.name for entry in home.iterdir()] == ["model"]


def test_logs_lie_together(home: Path) -> None:
    assert log_file(home, "vllm") == home / "logs" / "vllm.log"
    assert (home / "logs").is_dir()
