"""Ids of texts in overlapping windows, joined at seams one after the other."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from decision_proxy.prompt.encoder import Encoder, batched
from decision_proxy.prompt.seams import OVERLAP_CHARS, Seams
from decision_proxy.prompt.windows import Window

WINDOW_CHARS = 4096

#: The prompt that a window belongs to, where it starts, and its text or what became of it.
Part = tuple[int, int, str]
Made = tuple[int, int, Window]


class NoSeam(Exception):
    """Windows of this text cannot be joined."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The ids of a text before its last window is entered, and that window."""

    ids: array[int]
    last: Window
    start: int = 0
    entered: int = 0

    def all_ids(self) -> array[int]:
        return self.ids + self.last.ids[self.entered :]


class Joiner:
    """Every method raises NoSeam, or what the encoder's budget does."""

    def __init__(self, seams: Seams, encoder: Encoder[Window]) -> None:
        self._seams = seams
        self._encoder = encoder

    def head(self, head: str, *, before: int = 0, prompt: int = 0) -> Joined:
        """`before`: how many tokens the prompt has already."""
        windows = self._windows(self._parts(prompt, head))
        _, _, first = next(windows)
        return self._follow(Joined(array("I"), first), windows, before=before)

    def whole_head(self, head: str) -> Joined:
        """In one window, however long."""
        (window,) = self._encoder.encode([head])
        return Joined(array("I"), window)

    def tails(
        self, head: str, tails: Sequence[str], joined: Joined, start: int
    ) -> tuple[array[int], list[list[int]]]:
        """What all prompts begin with, and the rest of each; `start`: where a window of the head
        may start.
        """
        known = joined.ids
        begin = Joined(array("I"), joined.last, joined.start, joined.entered)
        parts = (
            (prompt, start + at, text)
            for prompt, tail in enumerate(tails)
            for _, at, text in self._parts(prompt, head[start:] + tail)
        )
        found: list[array[int]] = []
        shared = len(joined.last.ids)
        for prompt, windows in groupby(self._windows(parts), key=itemgetter(0)):
            own, ids = self._rest(begin, windows, before=len(known))
            shared = min(shared, own)
            found.append(ids)
            self._encoder.budget.allow(len(known) + len(found[-1]), prompt=prompt)
        return known + found[0][:shared], [ids[shared:].tolist() for ids in found]

    def aligned(self, head: str, joined: Joined, chars: int) -> int:
        """Where a window of the head may start, some `chars` before its end, as an id does.

        A run that repeats itself is then read in the same step as in the window before.
        """
        starts = joined.last.starts
        index = bisect_right(starts, len(head) - chars - joined.start)
        for at in reversed(starts[max(0, index - OVERLAP_CHARS) : index]):
            if at > 0 and self._seams.is_clear(head, joined.start + at, ""):
                return joined.start + at
        raise NoSeam

    def _parts(self, prompt: int, text: str) -> Iterator[Part]:
        starts = [0]
        while len(text) - starts[-1] > WINDOW_CHARS + 4 * OVERLAP_CHARS:
            start = self._seams.window_start(text, starts[-1] + WINDOW_CHARS)
            if start is None:
                raise NoSeam
            starts.append(start)
        ends = [*(start + OVERLAP_CHARS for start in starts[1:]), len(text)]
        return ((prompt, a, text[a:b]) for a, b in zip(starts, ends, strict=True))

    def _windows(self, parts: Iterable[Part]) -> Iterator[Made]:
        for batch in batched(parts, lambda part: len(part[2])):
            made = self._encoder.encode([text for _, _, text in batch])
            for (prompt, at, _), window in zip(batch, made, strict=True):
                yield prompt, at, window

    def _rest(
        self, begin: Joined, windows: Iterator[Made], *, before: int
    ) -> tuple[int, array[int]]:
        """The ids of a prompt from `begin` on, and how many of them are those of its window."""
        first = self._step(begin, next(windows))
        return len(first.ids), self._follow(first, windows, before=before).all_ids()

    def _follow(self, joined: Joined, windows: Iterable[Made], *, before: int) -> Joined:
        for made in windows:
            joined = self._step(joined, made)
            self._encoder.budget.allow(before + len(joined.ids), prompt=made[0])
        return joined

    def _step(self, joined: Joined, made: Made) -> Joined:
        _, start, window = made
        shift = start - joined.start
        joint = self._seams.join(joined.last, window, shift, after=joined.entered)
        if joint is None:
            raise NoSeam
        leave, enter = joint
        return Joined(joined.ids + joined.last.ids[joined.entered : leave], window, start, enter)
