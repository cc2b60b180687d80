# ruff: noqa: INP001
# mypy: disable-error-code="import-not-found"
"""Runs under the vLLM environment's Python: a tiny Qwen3 with random weights, always the same."""

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = Qwen3Config(
    vocab_size=151936,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=40960,
    bos_token_id=151643,
    eos_token_id=151645,
    tie_word_embeddings=False,
)


def make(target: Path) -> None:
    torch.manual_seed(20)
    model = Qwen3ForCausalLM(CONFIG).to(torch.bfloat16)
    model.save_pretrained(target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
