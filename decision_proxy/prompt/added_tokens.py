"""Where a tokenizer's added tokens stand in a text, and where they forbid a cut.

The tokenizer scans a text for added tokens from left to right, taking the longest at each place,
before anything else happens. A cut is safe for that scan when no added token can straddle it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AddedToken:
    content: str
    id: int
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False

    @property
    def looks_around(self) -> bool:
        return self.lstrip or self.rstrip or self.single_word


class AddedTokens:
    """`certain` tokens are matched in the text as it is written, before normalization."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self.tokens = tuple(token for token in tokens if token.content)
        self.contents = frozenset(token.content for token in self.tokens)
        self.certain = frozenset(t.content for t in self.tokens if not t.normalized)
        self.lengths = tuple(sorted({len(content) for content in self.contents}))
        self.longest = self.lengths[-1] if self.lengths else 0
        self.looking_around = tuple(t.content for t in self.tokens if t.looks_around)
        self.firsts = frozenset(content[0] for content in self.contents)
        self.lasts = frozenset(content[-1] for content in self.contents)

    @classmethod
    def from_json(cls, entries: list[dict[str, Any]]) -> "AddedTokens":
        return cls(AddedToken(**entry) for entry in entries)

    def straddle(self, left: str, right: str) -> bool:
        """Whether some added token could begin in `left` and end in `right`.

        `left` ends, and `right` starts, at the cut; `longest` characters of each are enough.
        """
        left = left[max(0, len(left) - self.longest + 1) :]
        if self.firsts.isdisjoint(left):
            return False
        text = left + right[: self.longest]
        return any(
            text[at : at + length] in self.contents
            for at in range(len(left))
            if text[at] in self.firsts
            for length in self.lengths
            if length > len(left) - at
        )

    def disturb(self, left: str, right: str) -> bool:
        """Whether a token that strips or inspects its neighbours may reach across the cut."""
        if not self.looking_around:
            return False
        return (left[-1:].isspace() and right[:1].isspace()) or any(
            left.endswith(content) or right.startswith(content) for content in self.looking_around
        )

    def edge(self, left: str, right: str) -> bool:
        """Whether the scan surely begins or ends a match between `left` and `right`.

        Twice `longest` characters of `left`, and once of `right`, are enough.
        """
        if self.looking_around and (
            self.disturb(left, right) or left[-1:].isspace() or right[:1].isspace()
        ):
            return False
        return self._begins(left, right) or self._ends(left, right)

    def _begins(self, left: str, right: str) -> bool:
        if right[:1] not in self.firsts:
            return False
        begins = any(right[:length] in self.certain for length in self.lengths)
        return begins and not self.straddle(left, right)

    def _ends(self, left: str, right: str) -> bool:
        if left[-1:] not in self.lasts:
            return False
        for length in self.lengths:
            start = len(left) - length
            if start < 0 or left[start:] not in self.certain:
                continue
            inside = left[start:] + right[: self.longest]
            longer = any(n > length and inside[:n] in self.contents for n in self.lengths)
            if not longer and not self.straddle(left[:start], inside):
                return True
        return False
