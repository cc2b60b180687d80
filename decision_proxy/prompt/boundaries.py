"""Where a text may be cut so that the ids of the parts are the ids of the whole.

A cut at position `p` is proven when all of these hold, whatever stands further away:

1. Added tokens: none can straddle `p`, and none that looks at its neighbours touches `p`.
2. Normalization neither joins nor changes the characters on the two sides of `p`.
3. Pre-tokenization: in no stage can a match consume the character before `p` and then the one
   after it, nor can a look-ahead be evaluated between them; so every stage works on the left part
   as it does on the whole, and a search on the right part starts as it does on the whole. In one
   stage at least, a match surely starts at `p`: so `p` is a pre-token boundary.
4. The model merges inside pre-tokens only (BPE without dropout).

The edge of an added token needs only the first point: the tokenizer treats the text on both of
its sides as separate pieces anyway. All of it is read from `tokenizer.json`; a tokenizer with a
part that is not known here offers no proof, and says which part.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from decision_proxy.prompt.added_tokens import AddedTokens
from decision_proxy.prompt.characters import Form, inert_after, inert_before
from decision_proxy.prompt.patterns import Pattern, UnknownPattern, compile_pattern
from decision_proxy.prompt.windows import Window

Json = dict[str, Any]

BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SEARCH_CHARS = 16384
MAX_PAIRS = 1 << 20


class Unprovable(ValueError):
    """Which part of this tokenizer is not covered by the proof."""


class Boundaries:
    """Cuts for one tokenizer. `unprovable` says why inner cuts are off; edges may still work."""

    def __init__(self, tokenizer: Json) -> None:
        self.added = AddedTokens.from_json(tokenizer["added_tokens"])
        self.edges = not _position_dependent(tokenizer["pre_tokenizer"]) and (
            self.added.certain == self.added.contents or not tokenizer["normalizer"]
        )
        #: Whether the scan for added tokens alone decides where they stand.
        self.scans = bool(
            self.added.contents
            and self.edges
            and self.added.certain == self.added.contents
            and not self.added.looking_around
        )
        edges = "".join(map(re.escape, sorted({*self.added.firsts, *self.added.lasts})))
        self._edge_characters = re.compile(f"[{edges}]" if edges else r"(?!)")
        self.unprovable: str | None = None
        self._hard: dict[str, bool] = {}
        self._stages: list[Pattern] = []
        self._form: Form | None = None
        try:
            self._form = _normal_form(tokenizer["normalizer"])
            self._stages = _stages(tokenizer["pre_tokenizer"])
            _check_model(tokenizer["model"])
            _check_added(self.added, self._form)
        except (Unprovable, UnknownPattern) as error:
            self.unprovable = str(error)

    def last_cut(self, text: str, tails: Sequence[str]) -> int | None:
        """The last proven cut of `text` that holds in `text + tail` for every tail.

        Returns a character position in 1 … len(text), or None when there is none within reach.
        """
        reach = self.added.longest + 2
        heads = sorted({tail[:reach] for tail in tails})
        for at in range(len(text), max(0, len(text) - SEARCH_CHARS), -1):
            near = text[at : at + reach]
            rights = [near] if len(near) == reach else [near + head for head in heads]
            if all(self.is_cut(text, at, right) for right in rights):
                return at
        return None

    def next_cut(self, text: str, start: int) -> int | None:
        """The first proven cut of `text` at or after `start` and before its end."""
        reach = self.added.longest + 2
        for at in self._candidates(text, max(1, start), min(len(text), start + SEARCH_CHARS)):
            if self.is_cut(text, at, text[at : at + reach]):
                return at
        return None

    def last_edge(self, head: str, window: Window) -> tuple[int, int] | None:
        """Ids and characters of `head` up to the last added token that no tail can change.

        `window` is of the whole head, so the scan found its added tokens; it took one for good
        where the longest of them still ends within the head.
        """
        if not self.scans:
            return None
        settled = len(head) - self.added.longest
        for index in range(bisect_right(window.starts, settled) - 1, -1, -1):
            start, end = window.starts[index], window.ends[index]
            if start < settled - SEARCH_CHARS:
                break
            if start <= settled and self.added.ids.get(head[start:end]) == window.ids[index]:
                return index + 1, end
        return None

    def _candidates(self, text: str, start: int, end: int) -> Iterable[int]:
        """Positions worth a look: all of them, or those beside a character of an added token."""
        if self.unprovable is None:
            return range(start, end)
        found = self._edge_characters.finditer(text, start - 1, end)
        return (at for match in found for at in match.span() if start <= at < end)

    def is_cut(self, text: str, at: int, right: str) -> bool:
        """Whether `text[:at] + right` may be cut at `at`; `right` may be clipped."""
        if not right:
            return False
        before, after = text[at - 1], right[0]
        if self.unprovable is None and self._is_hard(before, after):
            left = text[max(0, at - self.added.longest) : at]
            return (
                self._normal_around(before, right)
                and not self.added.disturb(left, right)
                and not self.added.straddle(left, right)
            )
        if self.edges and (before in self.added.lasts or after in self.added.firsts):
            return self.added.edge(text[max(0, at - 2 * self.added.longest) : at], right)
        return False

    def _is_hard(self, before: str, after: str) -> bool:
        hard = self._hard.get(before + after)
        if hard is None:
            hard = not any(
                stage.spans(before, after) or stage.looks_after(before) for stage in self._stages
            ) and any(stage.starts_at(after) for stage in self._stages)
            if len(self._hard) < MAX_PAIRS:
                self._hard[before + after] = hard
        return hard

    def _normal_around(self, before: str, right: str) -> bool:
        if self._form is None:
            return True
        if not inert_before(before, self._form) or not inert_before(right[0], self._form):
            return False
        return inert_after(right[0], self._form) or (
            len(right) > 1 and inert_before(right[1], self._form)
        )


def _normal_form(normalizer: Json | None) -> Form | None:
    """The Unicode form that the tokenizer normalizes to; None for none."""
    if normalizer is None:
        return None
    if normalizer["type"] == "Sequence":
        forms = {_normal_form(part) for part in normalizer["normalizers"]} - {None}
        if len(forms) > 1:
            raise Unprovable("several normalization forms")
        return forms.pop() if forms else None
    if normalizer["type"] in FORMS:
        form: Form = normalizer["type"]
        return form
    raise Unprovable(f"the normalizer {normalizer['type']}")


def _stages(pre_tokenizer: Json | None) -> list[Pattern]:
    if pre_tokenizer is None:
        raise Unprovable("no pre-tokenizer")
    parts = pre_tokenizer["pretokenizers"] if _is(pre_tokenizer, "Sequence") else [pre_tokenizer]
    stages = []
    for i, part in enumerate(parts):
        if _is(part, "ByteLevel") and i != len(parts) - 1:
            raise Unprovable("a pre-tokenizer after ByteLevel")
        stages += _stage(part)
    if not stages:
        raise Unprovable("a pre-tokenizer that never splits")
    return [compile_pattern(source) for source in stages]


def _stage(part: Json) -> list[str]:
    """The pattern of one pre-tokenizer, in a list; empty when it does not split."""
    match part:
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return [BYTE_LEVEL] if part.get("use_regex", True) else []
        case {"type": "Split", "behavior": "Isolated" | "Removed", "pattern": {"Regex": source}}:
            return [source]
        case {"type": "Digits", "individual_digits": individual}:
            return [r"\p{N}" if individual else r"\p{N}+"]
        case _:
            raise Unprovable(f"the pre-tokenizer {part['type']} with these options")


def _is(part: Json | None, kind: str) -> bool:
    return part is not None and part["type"] == kind


def _position_dependent(pre_tokenizer: Json | None) -> bool:
    """Whether the first piece of a text is treated unlike the others."""
    if pre_tokenizer is None:
        return False
    if _is(pre_tokenizer, "Sequence"):
        return any(_position_dependent(part) for part in pre_tokenizer["pretokenizers"])
    return _is(pre_tokenizer, "Metaspace") and pre_tokenizer.get("prepend_scheme") == "first"


def _check_model(model: Json) -> None:
    if model["type"] != "BPE":
        raise Unprovable(f"the model {model['type']}")
    if model.get("dropout"):
        raise Unprovable("BPE with dropout")


def _check_added(added: AddedTokens, form: Form | None) -> None:
    """Tokens matched after normalization must look the same before it, and come from nothing else.

    Three ASCII characters are the canonical form of another character: K, ; and `.
    """
    for token in added.tokens:
        if token.normalized and form is not None:
            plain = token.content.isascii() and not set("K;`") & set(token.content)
            if not plain or form != "NFC":
                raise Unprovable(f"the added token {token.content!r}, matched after {form}")
