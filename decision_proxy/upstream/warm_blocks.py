"""Which prefixes the engine should still hold in its cache, known from what was sent to it.

A prefix is a chain of blocks; the key of a block stands for all ids up to its end.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

BLOCK_TOKENS = 256


def block_keys(scope: Hashable, pieces: Iterable[array[int]]) -> tuple[int, ...]:
    """Keys of the whole blocks of the ids in `pieces`; equal keys mean equal ids and `scope`."""
    ids: array[int] = array("I")
    for piece in pieces:
        ids += piece
    raw, size = ids.tobytes(), BLOCK_TOKENS * ids.itemsize
    key, keys = hash(scope), []
    for start in range(0, len(raw) - size + 1, size):
        key = hash((key, raw[start : start + size]))
        keys.append(key)
    return tuple(keys)


class WarmBlocks:
    """Blocks that the engine should still hold, least recently used out first."""

    def __init__(self, tokens: int) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()
        self.reset(tokens)

    def __len__(self) -> int:
        return len(self._held)

    def length(self, blocks: Sequence[int]) -> int:
        """How many of the leading `blocks` are held; the start of a held prefix always is."""
        return bisect(blocks, 0, key=lambda block: int(block not in self._held))

    def touch(self, blocks: Sequence[int]) -> None:
        """The engine has just read these; it gives up the ends of prefixes first."""
        for block in reversed(blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def reset(self, tokens: int) -> None:
        """The engine was started, with room for `tokens`."""
        self._most = max(1, tokens // BLOCK_TOKENS)
        self._held.clear()
