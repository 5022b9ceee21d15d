from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Fork, Free
from pipeline.prefix_cache import PrefixCache, PrefixIndex


def filled(cache: PrefixCache, sequence: int, tokens: list[int]) -> int | None:
    """Open a sequence and run all of it."""
    length = cache.open(sequence, tokens, spare=0)
    if length is not None:
        cache.done(sequence, tokens, len(tokens))
    return length


# The index


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 12), max_size=3)), max_size=8),
    st.sets(st.integers(0, 7)),
    st.lists(st.integers(0, 1), max_size=12),
)
def test_the_longest_prefix_is_found(
    block: int, texts: list[tuple[list[int], list[int]]], removed: set[int], wanted: list[int]
) -> None:
    index, known = PrefixIndex(block), {}
    for sequence, (tokens, ends) in enumerate(texts):
        for end in sorted(ends):
            index.extend(sequence, tokens, min(end, len(tokens)))
        known[sequence] = tokens[: min(max(ends, default=0), len(tokens))]
    for sequence in removed:
        index.remove(sequence)
        known.pop(sequence, None)

    def shared(tokens: list[int]) -> int:
        same = 0
        while same < min(len(tokens), len(wanted)) // block * block and tokens[same] == wanted[same]:
            same += 1
        return same // block * block

    source, length = index.longest(wanted)
    assert length == max(map(shared, known.values()), default=0)
    if length:
        assert source is not None and shared(known[source]) == length


def test_an_emptied_index_holds_nothing() -> None:
    index = PrefixIndex(2)
    index.extend(1, [1, 2, 3, 4], 4)
    index.extend(2, [1, 2, 9, 9], 4)
    for sequence in (1, 2, 2):
        index.remove(sequence)
    assert index.longest([1, 2, 3, 4]) == (None, 0)
    assert not index._root.children


# The cache


def test_shared_blocks_are_counted_once() -> None:
    cache = PrefixCache(capacity=8, block=4)
    filled(cache, 0, [*range(12), 50])
    assert filled(cache, 1, [*range(12), 60]) == 12
    assert (cache.pinned, cache.kept) == (5, 0)
    cache.finish(0)
    assert (cache.pinned, cache.kept) == (4, 1)
    cache.finish(1)
    assert (cache.pinned, cache.kept) == (0, 4)  # the second has no whole block that the first has not
    assert cache.take_operations() == (Fork(0, 1, 12), Free(1))


def test_room_is_made_from_the_least_recently_used() -> None:
    cache = PrefixCache(capacity=4, block=2)
    for sequence, first in enumerate((10, 20, 30)):
        filled(cache, sequence, [first, first])
        cache.finish(sequence)
    filled(cache, 3, [10, 10, 11, 11])  # uses the oldest
    cache.finish(3)
    cache.take_operations()
    filled(cache, 4, [40, 40])
    assert cache.take_operations() == (Free(1),)


def test_what_does_not_fit_changes_nothing() -> None:
    cache = PrefixCache(capacity=6, block=2)
    filled(cache, 0, [1, 2])
    filled(cache, 1, [3, 4, 5, 6])
    cache.finish(1)
    assert cache.open(2, list(range(20, 31)), spare=0) is None
    assert cache.open(2, list(range(20, 28)), spare=2) is None
    assert cache.take_operations() == ()
    assert (cache.pinned, cache.kept) == (1, 2)
    assert filled(cache, 2, list(range(20, 30))) == 0
    assert cache.take_operations() == (Free(1),)


def test_blocks_to_be_shared_with_a_finished_one_must_fit_too() -> None:
    cache = PrefixCache(capacity=5, block=2)
    filled(cache, 0, [1, 2, 3, 4])
    cache.finish(0)
    filled(cache, 1, [9, 9, 9, 9])
    assert cache.open(2, [1, 2, 3, 4, 5, 6, 7], spare=0) is None  # 2 shared and 2 new, and 3 are not running
    assert cache.open(2, [1, 2, 3, 4, 5], spare=0) == 4


def test_growing_takes_whole_blocks_and_evicts() -> None:
    cache = PrefixCache(capacity=3, block=2)
    filled(cache, 0, [1, 2])
    cache.finish(0)
    filled(cache, 1, [3])
    assert cache.grow(1, 2) and cache.pinned == 1
    assert cache.grow(1, 3) and cache.grow(1, 5) and cache.pinned == 3
    assert cache.take_operations() == (Free(0),)
    assert not cache.grow(1, 7)


def test_nothing_is_shared_when_disabled() -> None:
    cache = PrefixCache(capacity=8, block=2, enabled=False)
    filled(cache, 0, [1, 2, 3])
    cache.finish(0)
    assert filled(cache, 1, [1, 2, 3]) == 0
    assert cache.take_operations() == (Free(0),)
