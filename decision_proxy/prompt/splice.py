"""Token ids of many prompts that share a long beginning, each as if it were encoded whole.

The law: the ids of every prompt equal `encode(prompt)`. Three ways, in this order:

* `cut`: the shared text is cut at proven boundaries, each piece encoded once and remembered,
  and each prompt adds a short window from the last boundary on;
* `seam`: for BPE without pre-tokens, overlapping windows joined where they provably agree;
* `full`: every prompt encoded whole, with the reason counted.

Texts are encoded a batch of blocks at a time, and no further than the budget of a prompt goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Literal

from decision_proxy.prompt.boundaries import SEARCH_CHARS, Boundaries
from decision_proxy.prompt.budget import UNLIMITED, Budget, PromptTooLong
from decision_proxy.prompt.encoder import Encoder, batched
from decision_proxy.prompt.joining import WINDOW_CHARS, Joiner, NoSeam
from decision_proxy.prompt.prefix_cache import PrefixCache
from decision_proxy.prompt.seams import OVERLAP_CHARS, Seams
from decision_proxy.prompt.spliced import Ids, Spliced
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.prompt.windows import Window

BLOCK_CHARS = 16384
PIECE_CHARS = 1024
SHORT_CHARS = 512
#: How far before the end of a head its last window starts, tried one after the other.
REACHES = (OVERLAP_CHARS, 4 * OVERLAP_CHARS, 16 * OVERLAP_CHARS)
How = Literal["cut", "seam", "full"]


@dataclass(frozen=True, slots=True)
class Encoders:
    pieces: Encoder[Ids]
    windows: Encoder[Window]
    budget: Budget


class Splicer:
    """Thread-safe: the caches lock themselves, everything else is read only after the start."""

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

    def splice(
        self,
        head: str,
        tails: Sequence[str],
        *,
        scope: Hashable = None,
        budget: Budget = UNLIMITED,
    ) -> Spliced:
        """Ids of `head + tail` for each tail. `scope` keeps cached states of strangers apart.

        Raises PromptTooLong or Cancelled, having remembered nothing.
        """
        common = common_prefix(tails)
        head, tails = head + common, [tail[len(common) :] for tail in tails]
        by = Encoders(
            Encoder(self.pieces, self._ids_of, scope=scope, budget=budget),
            Encoder(self.windows, self._windows_of, scope=scope, budget=budget),
            budget,
        )
        spliced = self._spliced(head, tails, by)
        by.pieces.remember()
        by.windows.remember()
        return spliced

    def _spliced(self, head: str, tails: Sequence[str], by: Encoders) -> Spliced:
        if len(head) < (2 * WINDOW_CHARS if len(tails) == 1 else SHORT_CHARS):
            return self._whole(head, tails, by)
        spliced = (
            self._by_cut(head, tails, by)
            or self._by_seam(head, tails, by)
            or self._by_opening(head, tails, by)
            or self._by_long_window(head, tails, by)
        )
        if spliced is not None:
            return spliced
        reason = "no_boundary" if self.method != "full" else "unknown_tokenizer"
        with self._lock:
            self.fallbacks[reason] += 1
        return self._whole(head, tails, by)

    def _ids_of(self, texts: Sequence[str]) -> list[Ids]:
        return [Ids.of(ids) for ids in self.tokenizer.encode_many(texts)]

    def _windows_of(self, texts: Sequence[str]) -> list[Window]:
        return [Window.of(encoding) for encoding in self.tokenizer.encode_with_spans(texts)]

    def _whole(self, head: str, tails: Sequence[str], by: Encoders) -> Spliced:
        return Spliced((), tuple(self._rests(head, tails, by, keep=False)))

    def _by_cut(self, head: str, tails: Sequence[str], by: Encoders) -> Spliced | None:
        cut = self.boundaries.last_cut(head, tails)
        if cut is None:
            return None
        shared: list[Ids] = []
        tokens = 0
        for ids in self._blocks(head[:cut], by):
            shared.append(ids)
            tokens += ids.tokens
            by.budget.allow(tokens)
        return Spliced(tuple(shared), tuple(self._rests(head[cut:], tails, by, before=tokens)))

    def _by_opening(self, head: str, tails: Sequence[str], by: Encoders) -> Spliced | None:
        """Cuts inside the tails, for each first character they have, where the head has none."""
        openings: dict[str, list[int]] = {}
        for i, tail in enumerate(tails):
            openings.setdefault(tail[:1], []).append(i)
        if len(openings) == len(tails) or self.boundaries.unprovable is not None:
            return None
        ids: list[list[int]] = [[] for _ in tails]
        for members in openings.values():
            common = common_prefix([tails[i] for i in members])
            rests = [tails[i][len(common) :] for i in members]
            try:
                spliced = self._by_cut(head + common, rests, by)
            except PromptTooLong as error:
                raise PromptTooLong(members[error.prompt]) from None
            if spliced is None:
                return None
            for i, whole in zip(members, spliced.full_ids(), strict=True):
                ids[i] = whole
        return Spliced((), tuple(ids))

    def _by_seam(self, head: str, tails: Sequence[str], by: Encoders) -> Spliced | None:
        if self.seams.unprovable is not None:
            return None
        start = self.seams.window_start(head, len(head) - OVERLAP_CHARS)
        if start is None:
            return None
        joiner = Joiner(self.seams, by.windows)
        try:
            joined = joiner.head(head)
            if start <= joined.start:
                return None
            shared, rests = joiner.tails(head, tails, joined, start)
        except NoSeam:
            return None
        return Spliced((Ids.of(shared),), tuple(rests))

    def _by_long_window(
        self,
        head: str,
        tails: Sequence[str],
        by: Encoders,
    ) -> Spliced | None:
        """The head as one window, so that only what stands at its end is encoded for every tail."""
        if len(tails) == 1 or not (self.boundaries.scans or self.seams.unprovable is None):
            return None
        joiner = Joiner(self.seams, by.windows)
        joined = joiner.whole_head(head)
        if (edge := self.boundaries.last_edge(head, joined.last)) is not None:
            count, end = edge
            by.budget.allow(count)
            rests = self._rests(head[end:], tails, by, before=count)
            return Spliced((Ids.of(joined.last.ids[:count]),), tuple(rests))
        for chars in REACHES if self.seams.unprovable is None else ():
            try:
                start = joiner.aligned(head, joined, chars)
                shared, found = joiner.tails(head, tails, joined, start)
            except NoSeam:
                continue
            return Spliced((Ids.of(shared),), tuple(found))
        return None

    def _rests(
        self,
        head: str,
        tails: Sequence[str],
        by: Encoders,
        *,
        before: int = 0,
        keep: bool = True,
    ) -> list[list[int]]:
        """Ids of `head + tail` for each tail, the rest of a prompt after `before` tokens."""
        found: list[list[int]] = [[] for _ in tails]
        parts = (
            (i, part)
            for i, tail in enumerate(tails)
            for part in self._cut(head + tail, BLOCK_CHARS)
        )
        for batch in batched(parts, lambda part: len(part[1])):
            known = [
                self._by_windows(text, by, before=before + len(found[i]), prompt=i)
                for i, text in batch
            ]
            short = [text for (_, text), ids in zip(batch, known, strict=True) if ids is None]
            made = iter(by.pieces.encode(short, keep=keep))
            for (i, _), ids in zip(batch, known, strict=True):
                found[i] += (ids or next(made)).ids
                by.budget.allow(before + len(found[i]), prompt=i)
        return found

    def _blocks(self, text: str, by: Encoders) -> Iterator[Ids]:
        """Ids of a text in order, block by block, each of which is remembered by its pieces too."""
        tokens = 0
        for blocks in batched(self._cut(text, BLOCK_CHARS), len):
            known = [
                by.pieces.known(block) or self._by_windows(block, by, before=tokens)
                for block in blocks
            ]
            parts = [
                [] if ids is not None else list(self._cut(block, PIECE_CHARS))
                for block, ids in zip(blocks, known, strict=True)
            ]
            made = iter(by.pieces.encode([part for own in parts for part in own]))
            for block, found, own in zip(blocks, known, parts, strict=True):
                ids = found or Ids.joined(list(islice(made, len(own))))
                if len(block) >= BLOCK_CHARS and found is None:
                    by.pieces.keep(block, ids)
                tokens += ids.tokens
                yield ids

    def _by_windows(self, text: str, by: Encoders, *, before: int, prompt: int = 0) -> Ids | None:
        """Ids of a part between two cuts that is so long that there is none inside."""
        if len(text) <= 2 * BLOCK_CHARS or self.seams.unprovable is not None:
            return None
        try:
            joined = Joiner(self.seams, by.windows).head(text, before=before, prompt=prompt)
        except NoSeam:
            return None
        return Ids.of(joined.all_ids())

    def _cut(self, text: str, size: int) -> Iterator[str]:
        """Parts of `size` characters or a little more; a text that grows keeps its first ones."""
        start, reach = 0, size
        while len(text) - start > reach:
            cut = self.boundaries.next_cut(text, start + reach)
            if cut is None:
                # A long run without any: looking further and further costs little.
                reach = 2 * reach + SEARCH_CHARS
                continue
            yield text[start:cut]
            start, reach = cut, size
        yield text[start:]


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
