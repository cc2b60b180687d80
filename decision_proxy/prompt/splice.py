"""Token ids of many prompts that share a long beginning, each as if it were encoded whole.

The law: the ids of every prompt equal `encode(prompt)`. Three ways, in this order:

* `cut`: the shared text is cut at proven boundaries, each piece encoded once and remembered,
  and each prompt adds a short window from the last boundary on;
* `seam`: for BPE without pre-tokens, overlapping windows joined where they provably agree;
* `full`: every prompt encoded whole, with the reason counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import orjson

from decision_proxy.prompt.boundaries import Boundaries
from decision_proxy.prompt.prefix_cache import PrefixCache
from decision_proxy.prompt.seams import OVERLAP_CHARS, Seams, Window
from decision_proxy.prompt.tokenizer import Tokenizer

BLOCK_CHARS = 16384
PIECE_CHARS = 1024
WINDOW_CHARS = 4096
SHORT_CHARS = 512
How = Literal["cut", "seam", "full"]


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
    """Ids of prompts: the shared pieces, then one tail for each prompt.

    encoded_chars: characters that went through the tokenizer; the rest was remembered.
    reason: why the prompts were encoded whole, when they were.
    """

    shared: tuple[Ids, ...]
    tails: tuple[list[int], ...]
    how: How
    encoded_chars: int
    reason: str | None = None

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


NO_IDS = Ids(array("I"), b"")


class Splicer:
    """Thread-safe: the cache locks itself, everything else is read only after the start."""

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int) -> None:
        self.tokenizer = tokenizer
        self.boundaries = Boundaries(tokenizer.json)
        self.seams = Seams(tokenizer.json, self.boundaries.added)
        self.pieces: PrefixCache[Ids] = PrefixCache(cache_bytes)
        self.windows: PrefixCache[Window] = PrefixCache(cache_bytes)
        self.fallbacks: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def method(self) -> How:
        """What this tokenizer allows, before any text is seen."""
        if self.boundaries.unprovable is None:
            return "cut"
        return "seam" if self.seams.unprovable is None else "full"

    def splice(self, head: str, tails: Sequence[str], *, scope: Hashable = None) -> Spliced:
        """Ids of `head + tail` for each tail. `scope` keeps cached states of strangers apart."""
        common = common_prefix(tails)
        head, tails = head + common, [tail[len(common) :] for tail in tails]
        if len(head) < (2 * WINDOW_CHARS if len(tails) == 1 else SHORT_CHARS):
            return self._whole(head, tails, self.method, None)
        spliced = (
            self._by_cut(head, tails, scope)
            or self._by_seam(head, tails, scope)
            or self._by_opening(head, tails, scope)
        )
        if spliced is not None:
            return spliced
        reason = "no_boundary" if self.method != "full" else "unknown_tokenizer"
        with self._lock:
            self.fallbacks[reason] += 1
        return self._whole(head, tails, "full", reason)

    def _whole(self, head: str, tails: Sequence[str], how: How, reason: str | None) -> Spliced:
        texts = [head + tail for tail in tails]
        ids = self.tokenizer.encode_many(texts)
        return Spliced((), tuple(ids), how, sum(map(len, texts)), reason)

    def _by_cut(self, head: str, tails: Sequence[str], scope: Hashable) -> Spliced | None:
        cut = self.boundaries.last_cut(head, tails)
        if cut is None:
            return None
        ending = head[cut:]
        windows = [ending + tail for tail in tails]
        *blocks, rest = self._cut(head[:cut], BLOCK_CHARS)
        known = {block: self.pieces.get(scope, block) for block in blocks}
        pieces = {block: self._cut(block, PIECE_CHARS) for block in blocks if known[block] is None}
        rest_pieces = self._cut(rest, PIECE_CHARS)
        found, chars = self._remembered(
            [*(text for texts in pieces.values() for text in texts), *rest_pieces, *windows], scope
        )
        for block, texts in pieces.items():
            known[block] = joined = Ids.joined([found[text] for text in texts])
            self.pieces.put(scope, block, joined)
        shared = [known[block] or NO_IDS for block in blocks]
        shared += [found[text] for text in rest_pieces]
        return Spliced(
            tuple(shared), tuple(found[window].ids.tolist() for window in windows), "cut", chars
        )

    def _by_opening(self, head: str, tails: Sequence[str], scope: Hashable) -> Spliced | None:
        """Cuts inside the tails, for each first character they have, where the head has none."""
        openings: dict[str, list[int]] = {}
        for i, tail in enumerate(tails):
            openings.setdefault(tail[:1], []).append(i)
        if len(openings) == len(tails) or self.boundaries.unprovable is not None:
            return None
        ids: list[list[int]] = [[] for _ in tails]
        chars = 0
        for members in openings.values():
            common = common_prefix([tails[i] for i in members])
            rests = [tails[i][len(common) :] for i in members]
            spliced = self._by_cut(head + common, rests, scope)
            if spliced is None:
                return None
            chars += spliced.encoded_chars
            for i, whole in zip(members, spliced.full_ids(), strict=True):
                ids[i] = whole
        return Spliced((), tuple(ids), "cut", chars)

    def _remembered(self, texts: Sequence[str], scope: Hashable) -> tuple[dict[str, Ids], int]:
        """Ids of each text, and how many characters had to be encoded for them."""
        known = {text: self.pieces.get(scope, text) for text in texts}
        found = {text: ids for text, ids in known.items() if ids is not None}
        missing = [text for text, ids in known.items() if ids is None]
        for text, ids in zip(missing, self.tokenizer.encode_many(missing), strict=True):
            found[text] = Ids.of(ids)
            self.pieces.put(scope, text, found[text])
        return found, sum(map(len, missing))

    def _cut(self, text: str, size: int) -> list[str]:
        """Parts of `size` characters or a little more; a text that grows keeps its first ones."""
        parts, start = [], 0
        while len(text) - start > size:
            cut = self.boundaries.next_cut(text, start + size)
            if cut is None:
                break
            parts.append(text[start:cut])
            start = cut
        return [*parts, text[start:]]

    def _by_seam(self, head: str, tails: Sequence[str], scope: Hashable) -> Spliced | None:
        if self.seams.unprovable is not None:
            return None
        starts = self._window_starts(head)
        last = self.seams.window_start(head, len(head) - OVERLAP_CHARS)
        if starts is None or last is None or last <= starts[-1]:
            return None
        ends = [start + OVERLAP_CHARS for start in starts[1:]]
        texts = [head[a:b] for a, b in zip(starts, [*ends, len(head)], strict=True)]
        windows, encoded = self._windows(texts, scope)
        joined = self._join(windows, starts)
        if joined is None:
            return None
        ids, left, entered = joined
        tips = [head[last:] + tail for tail in tails]
        rights = [Window.of(e) for e in self.tokenizer.encode_with_spans(tips)]
        joints = [
            self.seams.join(left, right, last - starts[-1], after=entered) for right in rights
        ]
        found = [joint for joint in joints if joint is not None]
        if len(found) < len(joints):
            return None
        leave = min(i for i, _ in found)
        ends_of = [
            [*left.ids[leave:i], *right.ids[j:]]
            for (i, j), right in zip(found, rights, strict=True)
        ]
        shared = Ids.of(ids + left.ids[entered:leave])
        return Spliced((shared,), tuple(ends_of), "seam", encoded + sum(map(len, tips)))

    def _window_starts(self, head: str) -> list[int] | None:
        starts = [0]
        while len(head) - starts[-1] > WINDOW_CHARS + 4 * OVERLAP_CHARS:
            start = self.seams.window_start(head, starts[-1] + WINDOW_CHARS)
            if start is None:
                return None
            starts.append(start)
        return starts

    def _windows(self, texts: list[str], scope: Hashable) -> tuple[list[Window], int]:
        windows = [self.windows.get(scope, text) for text in texts]
        missing = [text for text, window in zip(texts, windows, strict=True) if window is None]
        fresh = {
            text: Window.of(encoding)
            for text, encoding in zip(
                missing, self.tokenizer.encode_with_spans(missing), strict=True
            )
        }
        for text, window in fresh.items():
            self.windows.put(scope, text, window)
        found = [
            fresh[text] if window is None else window
            for text, window in zip(texts, windows, strict=True)
        ]
        return found, sum(map(len, missing))

    def _join(
        self, windows: list[Window], starts: list[int]
    ) -> tuple[array[int], Window, int] | None:
        """Ids before the last window, that window, and where it is entered."""
        ids: array[int] = array("I")
        left, entered = windows[0], 0
        for right, before, start in zip(windows[1:], starts, starts[1:], strict=False):
            joint = self.seams.join(left, right, start - before, after=entered)
            if joint is None:
                return None
            ids += left.ids[entered : joint[0]]
            left, entered = right, joint[1]
        return ids, left, entered


def common_prefix(texts: Sequence[str]) -> str:
    """The longest beginning that all `texts` have, in time linear in its length."""
    first, last = min(texts), max(texts)
    low, high = 0, min(len(first), len(last))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == last[low:middle]:
            low = middle
        else:
            high = middle - 1
    return first[:low]
