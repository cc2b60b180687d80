"""Token ids of prompts that share their beginning."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class Ids:
    """A run of token ids, with the same ids as they stand in a JSON list."""

    ids: array[int]
    json: bytes

    @classmethod
    def of(cls, ids: Sequence[int]) -> Ids:
        listed = ids.tolist() if isinstance(ids, array) else list(ids)
        return cls(array("I", listed), orjson.dumps(listed)[1:-1])

    @classmethod
    def joined(cls, runs: Sequence[Ids]) -> Ids:
        ids: array[int] = array("I")
        for run in runs:
            ids += run.ids
        return cls(ids, b",".join(run.json for run in runs if run.json))

    @property
    def bytes(self) -> int:
        return 4 * len(self.ids) + len(self.json)

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Spliced:
    """Ids of prompts: the shared pieces, then one tail for each prompt."""

    shared: tuple[Ids, ...]
    tails: tuple[list[int], ...]

    @property
    def shared_tokens(self) -> int:
        return sum(piece.tokens for piece in self.shared)

    def shared_json(self) -> bytes:
        return b",".join(piece.json for piece in self.shared if piece.json)

    def prompt_tokens(self) -> list[int]:
        """The length of each prompt, in tokens."""
        shared = self.shared_tokens
        return [shared + len(tail) for tail in self.tails]

    def ends_with(self, ending: Sequence[int]) -> list[bool]:
        """For each prompt, whether its last ids are `ending`."""
        wanted = list(ending)
        last: list[int] = []
        for piece in reversed(self.shared):
            if len(last) >= len(wanted):
                break
            last = piece.ids.tolist() + last
        return [
            (last + tail)[len(last) + len(tail) - len(wanted) :] == wanted for tail in self.tails
        ]

    def full_ids(self) -> list[list[int]]:
        shared = [i for piece in self.shared for i in piece.ids]
        return [shared + tail for tail in self.tails]
