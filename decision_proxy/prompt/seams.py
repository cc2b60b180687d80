"""Joining overlapping windows, for BPE tokenizers that do not pre-tokenize (Llama 2, Gemma).

There a merge may reach across any distance, so no position is a proven cut. But BPE applies the
merge of lowest rank first, and so a token sequence is what the model makes of its text exactly
when every two neighbours are: the first merge across one of its boundaries would also happen
between that boundary's two neighbours alone (Berglund and van der Merwe, "Formalizing BPE
Tokenization"). Two windows that overlap and agree on one token at the same place may therefore be
joined after it: each pair of neighbours then comes from one window or the other.

Added tokens and normalization work on single characters here; `AddedTokens` keeps both the start
of a window and a seam out of an added token.
"""

from bisect import bisect_left
from typing import Any

from decision_proxy.prompt.added_tokens import AddedTokens
from decision_proxy.prompt.windows import Window

OVERLAP_CHARS = 160
ASCII_END, UTF8_END = 0x80, 0xF5
Json = dict[str, Any]


class Seams:
    """Where two windows of one tokenizer may be joined; `unprovable` says why never."""

    def __init__(self, tokenizer: Json, added: AddedTokens) -> None:
        self.added = added
        model = tokenizer["model"]
        self._unknown = (
            model["vocab"].get(model.get("unk_token"), -1) if model["type"] == "BPE" else -1
        )
        self.unprovable = _objection(tokenizer)
        if self.unprovable is None and 2 * added.longest > OVERLAP_CHARS:
            self.unprovable = f"an added token of {added.longest} characters"

    def window_start(self, text: str, at: int) -> int | None:
        """The last place at or before `at` where a window of `text` may start."""
        for start in range(at, max(0, at - OVERLAP_CHARS), -1):
            if self.is_clear(text, start, ""):
                return start
        return None

    def is_clear(self, text: str, at: int, tail: str) -> bool:
        """Whether no added token touches or crosses `at` in `text + tail`."""
        left = text[max(0, at - self.added.longest) : at]
        right = (text[at : at + self.added.longest] + tail)[: self.added.longest]
        return not self.added.disturb(left, right) and not self.added.straddle(left, right)

    def join(
        self, left: Window, right: Window, shift: int, *, after: int = 0
    ) -> tuple[int, int] | None:
        """Where to leave `left` and enter `right`, whose text starts `shift` characters later.

        Returns (i, j): the ids `left[:i] + right[j:]` are those of the joined text; i > `after`.
        """
        index = max(after, bisect_left(left.starts, shift + 1))
        while index < len(left.ids):
            start, end = left.starts[index] - shift, left.ends[index] - shift
            other = bisect_left(right.ends, end)
            while other + 1 < len(right.ids) and right.ends[other + 1] == end:
                other += 1
            if (
                other < len(right.ids)
                and (right.starts[other], right.ends[other]) == (start, end)
                and right.ids[other] == left.ids[index] != self._unknown
                and left.closes(index)
                and right.closes(other)
            ):
                return index + 1, other + 1
            index += 1
        return None


def _objection(tokenizer: Json) -> str | None:
    if found := _model_objection(tokenizer["model"]):
        return found
    normalizer = tokenizer["normalizer"]
    if not _works_by_character(normalizer):
        return "its normalizer"
    if not _never_splits(tokenizer["pre_tokenizer"], spaces=_keeps_spaces(normalizer)):
        return "its pre-tokenizer"
    if any(token["normalized"] for token in tokenizer["added_tokens"]) and normalizer:
        return "added tokens matched after normalization"
    return None


def _model_objection(model: Json) -> str | None:
    if model["type"] != "BPE" or model.get("dropout") or model.get("ignore_merges"):
        return f"the model {model['type']} with these options"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "BPE with affixes"
    if not _covers_every_character(model):
        return "characters that its vocabulary drops or reorders"
    return None


def _covers_every_character(model: Json) -> bool:
    """Whether each character becomes one id, or its bytes, at its own place.

    Without an unknown token a strange character vanishes, and the spans of what follows are off;
    with some bytes only, an unknown token may appear after what follows it.
    """
    vocab = model["vocab"]
    if model.get("byte_fallback"):
        return all(
            f"<0x{byte:02X}>" in vocab or (byte < ASCII_END and chr(byte) in vocab)
            for byte in range(UTF8_END)
        )
    return model.get("unk_token") in vocab


def _parts(normalizer: Json | None) -> list[Json]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [part for inner in normalizer["normalizers"] for part in _parts(inner)]
    return [normalizer]


def _works_by_character(normalizer: Json | None) -> bool:
    return all(
        part["type"] == "Prepend" or len(_replaced(part) or "") == 1 for part in _parts(normalizer)
    )


def _keeps_spaces(normalizer: Json | None) -> bool:
    """Whether a normalized text can have a space in it."""
    spaces = True
    for part in _parts(normalizer):
        if part["type"] == "Prepend":
            spaces = spaces or " " in part["prepend"]
        else:
            left = spaces and _replaced(part) != " "
            spaces = left or " " in part["content"]
    return spaces


def _replaced(part: Json) -> str | None:
    match part:
        case {"type": "Replace", "pattern": {"String": str(old)}}:
            return old
        case _:
            return None


def _never_splits(pre_tokenizer: Json | None, *, spaces: bool) -> bool:
    match pre_tokenizer:
        case None | {"type": "Metaspace", "split": False}:
            return True
        case {"type": "Split", "pattern": {"String": " "}}:
            return not spaces
        case _:
            return False
