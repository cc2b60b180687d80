"""The served model's tokenizer: its ids, its added tokens, and what its file says of itself."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from decision_proxy.errors import RequestError

Json = dict[str, Any]


class TokenizerError(Exception):
    """The tokenizer cannot be loaded; the message says what to do."""


@contextmanager
def _panics() -> Iterator[None]:
    """The tokenizers library gives up on some texts, such as ten million spaces, by a Rust panic.

    That is no Exception, and the type cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"the tokenizer cannot read this text: {error}") from error


@contextmanager
def _unreadable(source: str) -> Iterator[None]:
    """The tokenizers library raises bare Exceptions, transformers whatever its own code hits."""
    try:
        yield
    except Exception as error:
        reason = _lacking(Path(source) / "tokenizer.json") or str(error).strip().split("\n")[0]
        raise TokenizerError(
            f"No tokenizer could be loaded from {source!r}: {reason} "
            "Give --tokenizer the folder with tokenizer.json and tokenizer_config.json "
            "of the model that vLLM serves."
        ) from error


def _lacking(path: Path) -> str | None:
    """What every tokenizer.json must have and this one has not."""
    try:
        file = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(file, dict):
        return "tokenizer.json is no JSON object."
    model = file.get("model")
    if not isinstance(model, dict):
        return "tokenizer.json lacks 'model'."
    return None if "vocab" in model else "tokenizer.json lacks 'vocab' in its 'model'."


class Tokenizer:
    """Encodes without special tokens, truncation or padding, as vLLM encodes a rendered chat."""

    def __init__(self, hf: PreTrainedTokenizerFast) -> None:
        self.hf = hf
        backend = hf.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        self.json: Json = json.loads(backend.to_str())
        self._backend = Backend.from_str(json.dumps(self.json | {"post_processor": None}))

    @classmethod
    def load(cls, source: str, *, chat_template: Path | None = None) -> "Tokenizer":
        """`source`: a folder, or a name that is in the local hub cache already."""
        with _unreadable(source):
            hf = AutoTokenizer.from_pretrained(
                source, trust_remote_code=False, local_files_only=True
            )
        if not isinstance(hf, PreTrainedTokenizerFast):
            raise TokenizerError(f"The tokenizer in {source!r} has no fast version.")
        if chat_template is not None:
            hf.chat_template = chat_template.read_text(encoding="utf-8")
        return cls(hf)

    def encode(self, text: str) -> list[int]:
        with _panics():
            return self._backend.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """In parallel, outside the interpreter lock."""
        with _panics():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_spans(self, texts: Sequence[str]) -> list[Encoding]:
        """Likewise, each id with the character span it came from."""
        with _panics():
            return self._backend.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.hf.decode(list(ids)))

    @cached_property
    def added_ids(self) -> frozenset[int]:
        return frozenset(entry["id"] for entry in self.json["added_tokens"])

    @cached_property
    def max_chars_per_token(self) -> int:
        """As vLLM counts, which refuses by it before it tokenizes.

        Where an id can stand for more (normalizers that delete, added tokens that strip, unknown
        words), vLLM refuses texts that would fit, and so do we.
        """
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary))

    def plain(self) -> "Tokenizer":
        """The same tokenizer, for which control tokens written out in a text are plain text.

        Added tokens of white space stay: they belong to the ordinary vocabulary.
        """
        entries = self.json["added_tokens"]
        kept = [entry for entry in entries if _is_white_space(entry)]
        copy = object.__new__(Tokenizer)
        copy.hf = self.hf
        copy.json = self.json | {"added_tokens": kept}
        # The library numbers added tokens by their place in the list, so none may go missing.
        unspellable = [
            entry if _is_white_space(entry) else _unspellable(entry) for entry in entries
        ]
        file = copy.json | {"added_tokens": unspellable, "post_processor": None}
        copy._backend = Backend.from_str(json.dumps(file))
        return copy


def _is_white_space(entry: Json) -> bool:
    return not entry["content"].replace("▁", " ").strip()


def _unspellable(entry: Json) -> Json:
    return entry | {"content": f"\ue000{token_hex(12)}\ue001", "normalized": False}
