"""Token ids of texts seen before, bounded in bytes, least recently used first out.

Keys are whole texts, so a hit is exact. A growing state finds the pieces before its new lines.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

ENTRY_OVERHEAD_BYTES = 400


class Sized(Protocol):
    @property
    def bytes(self) -> int: ...


Entry = TypeVar("Entry", bound=Sized)


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    entries: int
    bytes: int
    max_bytes: int
    hits: int
    misses: int
    evictions: int


class PrefixCache(Generic[Entry]):
    """Safe to use from several threads. `scope` keeps the entries of different salts apart."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[tuple[Hashable, str], tuple[Entry, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evictions = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        seen = self.statistics()
        return f"<PrefixCache {seen.entries} entries, {seen.bytes} of {seen.max_bytes} bytes>"

    def get(self, scope: Hashable, text: str) -> Entry | None:
        with self._lock:
            found = self._entries.get((scope, text))
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end((scope, text))
            return found[0]

    def put(self, scope: Hashable, text: str, entry: Entry) -> None:
        size = entry.bytes + _text_bytes(text) + ENTRY_OVERHEAD_BYTES
        if size > self.max_bytes:
            return
        with self._lock:
            _, old = self._entries.pop((scope, text), (None, 0))
            self._entries[scope, text] = entry, size
            self._bytes += size - old
            while self._bytes > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed
                self._evictions += 1

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return CacheStatistics(
                entries=len(self._entries),
                bytes=self._bytes,
                max_bytes=self.max_bytes,
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )


def _text_bytes(text: str) -> int:
    widest = max(text) if text else ""
    return len(text) * (1 if widest <= "\xff" else 2 if widest <= "\uffff" else 4)
