from functools import cache

from decision_proxy.prompt.tokenizer import Tokenizer
from tests.servers import tokenizer_folder

NAMES = (
    "qwen3", "llama3", "llama3_1", "llama2", "gemma3", "gpt4o", "gptoss", "deepseek_v3", "smollm2",
    "claude", "gemini",
)  # fmt: skip


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_folder(name)))
