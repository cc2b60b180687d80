import sys
from functools import cache

import pytest

from decision_proxy.embedded.environment import ensure_environment
from decision_proxy.embedded.home import default_home
from decision_proxy.embedded.models import smollm2
from decision_proxy.embedded.progress import PlainReport
from decision_proxy.prompt.tokenizer import Tokenizer
from tests.servers import tokenizer_folder

NAMES = (
    "qwen3", "llama3", "llama3_1", "llama2", "gemma3", "gpt4o", "gptoss", "deepseek_v3", "smollm2",
    "claude", "gemini",
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def tokenizers_are_here() -> None:
    """A first set-up takes minutes, which no test's own time limit should have to allow for."""
    for name in NAMES:
        real_tokenizer(name)


@cache
def real_tokenizer(name: str) -> Tokenizer:
    if name != "smollm2":
        return Tokenizer.load(str(tokenizer_folder(name)))
    report = PlainReport(sys.__stderr__ or sys.stderr)
    python = ensure_environment(default_home(), report)
    return Tokenizer.load(str(smollm2(default_home(), python, report)))
