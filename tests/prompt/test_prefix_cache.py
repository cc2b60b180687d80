from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.prompt.prefix_cache import ENTRY_OVERHEAD_BYTES, PrefixCache


@dataclass(frozen=True)
class Sized:
    bytes: int


def test_what_was_put_is_found_under_its_whole_text_and_scope_only() -> None:
    cache: PrefixCache[Sized] = PrefixCache(10_000)
    entry = Sized(1)
    cache.put("salt", "text", entry)
    assert cache.get("salt", "text") is entry
    assert cache.get("other", "text") is None
    assert cache.get("salt", "tex") is None
    assert (cache.statistics().hits, cache.statistics().misses) == (1, 2)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: PrefixCache[Sized] = PrefixCache(2 * (ENTRY_OVERHEAD_BYTES + 101))
    for text in "ab":
        cache.put(None, text, Sized(100))
    cache.get(None, "a")
    cache.put(None, "c", Sized(100))
    assert [cache.get(None, text) is not None for text in "abc"] == [True, False, True]
    assert cache.statistics().evictions == 1


def test_an_entry_larger_than_the_cache_is_not_kept() -> None:
    cache: PrefixCache[Sized] = PrefixCache(1000)
    cache.put(None, "a", Sized(1000))
    assert cache.statistics().entries == 0


def test_an_entry_put_again_counts_once() -> None:
    cache: PrefixCache[Sized] = PrefixCache(10_000)
    cache.put(None, "a", Sized(100))
    once = cache.statistics().bytes
    cache.put(None, "a", Sized(100))
    assert cache.statistics().bytes == once


@pytest.mark.parametrize(("text", "size"), [("", 0), ("aé", 2), ("今", 2), ("👩a", 8)])
def test_a_text_counts_as_python_stores_it(text: str, size: int) -> None:
    cache: PrefixCache[Sized] = PrefixCache(10_000)
    cache.put(None, text, Sized(7))
    assert cache.statistics().bytes == ENTRY_OVERHEAD_BYTES + size + 7


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 3000)), max_size=60),
    st.integers(0, 6000),
)
def test_the_bytes_never_exceed_the_bound(puts: list[tuple[str, int]], most: int) -> None:
    cache: PrefixCache[Sized] = PrefixCache(most)
    for text, size in puts:
        cache.put(None, text, Sized(size))
        assert cache.statistics().bytes <= most
    assert (cache.statistics().bytes == 0) == (cache.statistics().entries == 0)


def test_threads_leave_the_count_right() -> None:
    cache: PrefixCache[Sized] = PrefixCache(20_000)

    def work(worker: int) -> None:
        for i in range(300):
            cache.put(worker % 3, str(i % 40), Sized(i % 40))
            cache.get(worker % 3, str((i * 7) % 40))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    seen = cache.statistics()
    kept = [size for _, size in cache._entries.values()]
    assert seen.bytes == sum(kept) <= seen.max_bytes
    assert seen.hits + seen.misses == 8 * 300


def test_repr_says_how_full_it_is() -> None:
    assert repr(PrefixCache(5)) == "<PrefixCache 0 entries, 0 of 5 bytes>"
