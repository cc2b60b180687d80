"""The fake engine's KV cache: which prefixes it holds, who uses them, what goes first.

A block is known by the hash of all tokens up to its end, so the held blocks form trees. A block is
pinned while a request or a pinned block after it uses it; the others are idle, and are evicted in
the order in which they became so, the end of a prompt before its start, as in vLLM.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """`private` blocks are those that no other request can find: unfinished ones and copies."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0
        self._pins: dict[int, int] = {}
        self._parents: dict[int, int | None] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BlockPool {self.used}/{self.capacity} used, {len(self._idle)} idle>"

    def __contains__(self, block: int) -> bool:
        return block in self._pins

    @property
    def used(self) -> int:
        """Blocks of requests; idle ones are free to be taken."""
        return self.private + len(self._pins) - len(self._idle)

    @property
    def free(self) -> int:
        return self.capacity - self.used

    @property
    def held(self) -> int:
        return len(self._pins)

    def leading(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are held; a held block's whole prefix is held too."""
        return bisect_left(range(len(blocks)), 1, key=lambda i: blocks[i] not in self._pins)

    def idle_before(self, block: int | None) -> int:
        """How many free blocks a pin on `block` would take."""
        idle = 0
        while block is not None and not self._pins[block]:
            idle += 1
            block = self._parents[block]
        return idle

    def take_private(self, blocks: int) -> None:
        """Takes free blocks, evicting idle ones."""
        if blocks > self.free:
            raise RuntimeError(f"{blocks} blocks wanted of {self!r}")
        self.private += blocks
        while self.private + len(self._pins) > self.capacity:
            evicted, _ = self._idle.popitem(last=False)
            del self._pins[evicted], self._parents[evicted]

    def give_private(self, blocks: int) -> None:
        self.private -= blocks

    def publish(self, block: int, after: int | None) -> bool:
        """Makes a private block findable, pinned by its owner; False if another copy is held.

        Either way the pin that the owner had on `after` is on `block` from now on.
        """
        is_new = block not in self._pins
        if is_new:
            self._pins[block] = 0
            self._parents[block] = after
            self._idle[block] = None
            self.private -= 1
        self.pin(block)
        self.unpin(after)
        return is_new

    def pin(self, block: int | None) -> None:
        while block is not None:
            self._pins[block] += 1
            if self._pins[block] > 1:
                return
            del self._idle[block]
            block = self._parents[block]

    def unpin(self, block: int | None) -> None:
        while block is not None:
            self._pins[block] -= 1
            if self._pins[block]:
                return
            self._idle[block] = None
            block = self._parents[block]
