"""Texts to entries of a cache, for one splice.

What is new stays here until the prompts are known to fit; a refused text leaves nothing behind.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from decision_proxy.prompt.budget import Budget
from decision_proxy.prompt.prefix_cache import PrefixCache, Sized

BATCH_CHARS = 1 << 18

Entry = TypeVar("Entry", bound=Sized)
Part = TypeVar("Part")


class Encoder(Generic[Entry]):
    def __init__(
        self,
        cache: PrefixCache[Entry],
        encode: Callable[[Sequence[str]], Sequence[Entry]],
        *,
        scope: Hashable,
        budget: Budget,
    ) -> None:
        self.budget = budget
        self._cache = cache
        self._encode = encode
        self._scope = scope
        self._new: dict[str, Entry] = {}

    def known(self, text: str) -> Entry | None:
        return self._new.get(text) or self._cache.get(self._scope, text)

    def encode(self, texts: Sequence[str], *, keep: bool = True) -> list[Entry]:
        """Entries of texts that `batched` put together; raises Cancelled."""
        self.budget.go_on()
        known = {text: self.known(text) for text in texts}
        found = {text: entry for text, entry in known.items() if entry is not None}
        missing = [text for text in known if text not in found]
        made = dict(zip(missing, self._encode(missing), strict=True)) if missing else {}
        if keep:
            self._new |= made
        found |= made
        return [found[text] for text in texts]

    def keep(self, text: str, entry: Entry) -> None:
        self._new[text] = entry

    def remember(self) -> None:
        for text, entry in self._new.items():
            self._cache.put(self._scope, text, entry)


def batched(parts: Iterable[Part], size: Callable[[Part], int]) -> Iterator[list[Part]]:
    """Parts of BATCH_CHARS together, or one that is larger: enough to encode in parallel."""
    batch: list[Part] = []
    chars = 0
    for part in parts:
        batch.append(part)
        chars += size(part)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
