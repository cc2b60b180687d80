"""Where a tokenizer's added tokens stand in a text, and where they forbid a cut.

The tokenizer scans a text for added tokens from left to right, taking the longest at each place,
before anything else happens. A cut is safe for that scan when no added token can straddle it.
"""

from collections.abc import Iterable, Mapping
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
        self.ids = {token.content: token.id for token in self.tokens}
        self.contents = frozenset(token.content for token in self.tokens)
        self.certain = frozenset(t.content for t in self.tokens if not t.normalized)
        self.longest = max(map(len, self.contents), default=0)
        self.looking_around = tuple(t.content for t in self.tokens if t.looks_around)
        self._pairs = frozenset(c[i : i + 2] for c in self.contents for i in range(len(c) - 1))
        #: Lengths of the tokens that begin, and that end, with a character.
        self.firsts = _lengths({content: content[0] for content in self.contents})
        self.lasts = _lengths({content: content[-1] for content in self.contents})

    @classmethod
    def from_json(cls, entries: list[dict[str, Any]]) -> "AddedTokens":
        return cls(AddedToken(**entry) for entry in entries)

    def straddle(self, left: str, right: str) -> bool:
        """Whether some added token could begin in `left` and end in `right`.

        `left` ends, and `right` starts, at the cut; `longest` characters of each are enough.
        """
        if left[-1:] + right[:1] not in self._pairs:
            return False
        left = left[max(0, len(left) - self.longest + 1) :]
        text = left + right[: self.longest]
        for at, char in enumerate(left):
            for length in self.firsts.get(char, ()):
                if length > len(left) - at and text[at : at + length] in self.contents:
                    return True
        return False

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
        lengths = self.firsts.get(right[:1], ())
        begins = any(right[:length] in self.certain for length in lengths)
        return begins and not self.straddle(left, right)

    def _ends(self, left: str, right: str) -> bool:
        for length in self.lasts.get(left[-1:], ()):
            start = len(left) - length
            if start < 0 or left[start:] not in self.certain:
                continue
            inside = left[start:] + right[: self.longest]
            lengths = self.firsts[inside[0]]
            longer = any(n > length and inside[:n] in self.contents for n in lengths)
            if not longer and not self.straddle(left[:start], inside):
                return True
        return False


def _lengths(marks: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for content, char in marks.items():
        found.setdefault(char, set()).add(len(content))
    return {char: tuple(sorted(lengths)) for char, lengths in found.items()}
