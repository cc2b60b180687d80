"""Tokenizers small enough to see through, each with the one option that a test is about."""

import json
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.tokenizer import Tokenizer

Json = dict[str, Any]

WORDS = {
    "type": "Split", "pattern": {"Regex": r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s+"},
    "behavior": "Isolated", "invert": False,
}  # fmt: skip


def added(content: str, **flags: bool) -> Json:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, "special": True, **plain, **flags}


def small_file(
    *merges: str,
    tokens: tuple[Json, ...] = (),
    letters: str = "abcdefghijklmnopqrstuvwxyz ▁\n1-<>|é",
    **parts: Any,
) -> Json:
    """`merges`: pairs written "a b". `parts` replace the file's or the model's."""
    vocab = {letter: i for i, letter in enumerate(["<unk>", *letters])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for pair in pairs:
        vocab.setdefault("".join(pair), len(vocab))
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocab, "merges": [list(pair) for pair in pairs],
    }  # fmt: skip
    model |= {key: value for key, value in parts.items() if key in model}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "pre_tokenizer": WORDS, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model,
        "added_tokens": [{"id": len(vocab) + i} | token for i, token in enumerate(tokens)],
    }  # fmt: skip
    return file | {key: value for key, value in parts.items() if key not in model}


def small_hf(file: Json, *, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    hf = PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(file)))
    hf.chat_template = chat_template
    return hf


def small_tokenizer(file: Json, *, chat_template: str | None = None) -> Tokenizer:
    return Tokenizer(small_hf(file, chat_template=chat_template))


def small_splicer(file: Json) -> Splicer:
    return Splicer(small_tokenizer(file), cache_bytes=1 << 20)
