from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Fork, Free
from pipeline.prefix_cache import PrefixCache, PrefixIndex


def filled(cache: PrefixCache, tokens: list[int]) -> tuple[int, int]:
    """Open a sequence and run all of it: its name, and how much of it was cached."""
    opened = cache.open(tokens, spare=0)
    assert opened is not None
    cache.done(opened[0], tokens, len(tokens))
    return opened


def kept(cache: PrefixCache, tokens: list[int]) -> int:
    """One that has ended."""
    name, _ = filled(cache, tokens)
    cache.rest(name, len(tokens))
    return name


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


def test_an_heir_has_the_beginning_alone_and_is_none_where_another_has_it_too() -> None:
    index = PrefixIndex(2)
    index.extend(1, [1, 2, 3, 4, 5, 6], 6)
    assert index.shorten(1, 7, 4)
    assert index.longest([1, 2, 3, 4, 5, 6]) == (7, 4)
    assert (index.length(1), index.length(7)) == (0, 4)
    index.extend(2, [1, 2, 9, 9], 4)
    assert not index.shorten(7, 8, 2)
    assert index.longest([1, 2, 3, 4]) == (2, 2)
    assert not index.shorten(2, 9, 0)
    assert not index._root.children


# The cache


def test_shared_blocks_are_counted_once() -> None:
    cache = PrefixCache(capacity=8, block=4)
    first, _ = filled(cache, [*range(12), 50])
    second, length = filled(cache, [*range(12), 60])
    assert length == 12
    assert (cache.pinned, cache.kept) == (5, 0)
    cache.rest(first, 13)
    assert (cache.pinned, cache.kept) == (4, 1)
    cache.rest(second, 13)
    assert (cache.pinned, cache.kept) == (0, 4)  # the second has no whole block that the first has not
    assert cache.take_operations() == (Fork(first, second, 12), Free(second))


def test_room_is_made_from_the_least_recently_used() -> None:
    cache = PrefixCache(capacity=4, block=2)
    names = [kept(cache, [first, first]) for first in (10, 20, 30)]
    kept(cache, [10, 10, 11, 11])  # uses the oldest
    cache.take_operations()
    filled(cache, [40, 40])
    assert cache.take_operations() == (Free(names[1]),)
    assert cache.evicted == 1


def test_room_is_made_from_the_end_and_no_more_than_is_needed() -> None:
    cache = PrefixCache(capacity=6, block=2)
    first = kept(cache, list(range(10)))
    cache.take_operations()
    filled(cache, [50, 51, 52, 53])
    (fork, free) = cache.take_operations()
    assert isinstance(fork, Fork) and (fork.source, fork.length, free) == (first, 8, Free(first))
    assert (cache.pinned, cache.kept, cache.evicted) == (2, 4, 1)
    name, length = filled(cache, list(range(8)))
    assert length == 6
    assert cache.take_operations() == (Fork(fork.target, name, 6), Fork(fork.target, name + 1, 6), Free(fork.target))


def test_one_that_was_shortened_is_still_the_first_to_go() -> None:
    cache = PrefixCache(capacity=5, block=2)
    kept(cache, [1, 1, 2, 2, 3, 3])
    kept(cache, [9, 9])
    for first in (50, 60, 70):
        filled(cache, [first, first])
    assert filled(cache, [9, 9, 1]) is not None
    assert cache.evicted == 3


def test_blocks_that_were_never_filled_are_given_back_when_it_stops() -> None:
    cache = PrefixCache(capacity=8, block=2)
    tokens = list(range(12))
    opened = cache.open(tokens, spare=0)
    assert opened is not None and cache.pinned == 6
    cache.done(opened[0], tokens, 4)
    cache.rest(opened[0], 6)  # rows are on their way
    assert (cache.pinned, cache.kept) == (0, 3)
    cache.done(opened[0], tokens, 6)  # they count, where it is still there
    assert filled(cache, tokens)[1] == 6


def test_what_is_done_of_one_that_is_no_more_is_ignored() -> None:
    cache = PrefixCache(capacity=8, block=2)
    name, _ = filled(cache, [1, 2, 3])
    cache.free(name)
    cache.done(name, [1, 2, 3, 4], 4)
    assert filled(cache, [1, 2, 3])[1] == 0


def test_what_does_not_fit_changes_nothing() -> None:
    cache = PrefixCache(capacity=6, block=2)
    filled(cache, [1, 2])
    second = kept(cache, [3, 4, 5, 6])
    assert cache.open(list(range(20, 31)), spare=0) is None
    assert cache.open(list(range(20, 28)), spare=2) is None
    assert cache.take_operations() == ()
    assert (cache.pinned, cache.kept) == (1, 2)
    assert filled(cache, list(range(20, 30)))[1] == 0
    assert cache.take_operations() == (Free(second),)


def test_whether_it_would_fit_without_others() -> None:
    cache = PrefixCache(capacity=6, block=2)
    (a, _), (b, _) = filled(cache, [1, 2, 3, 4, 5]), filled(cache, [1, 2, 3, 4, 6])  # 2 blocks are of both
    assert (cache.pinned, cache.fits([9] * 4, 0), cache.fits([9] * 6, 0)) == (4, True, False)
    assert cache.fits([9] * 6, 0, without=[a]) and not cache.fits([9] * 8, 0, without=[a])
    assert cache.fits([9] * 12, 0, without=[a, b])
    assert not cache.fits([1, 2, 3, 4, *[9] * 10], 0, without=[a, b])
    assert cache.fits([1, 2, 3, 4, *[9] * 8], 0, without=[a, b])


def test_blocks_to_be_shared_with_a_kept_one_must_fit_too() -> None:
    cache = PrefixCache(capacity=5, block=2)
    kept(cache, [1, 2, 3, 4])
    filled(cache, [9, 9, 9, 9])
    assert cache.open([1, 2, 3, 4, 5, 6, 7], spare=0) is None  # 2 shared and 2 new, and 3 are not running
    assert filled(cache, [1, 2, 3, 4, 5])[1] == 4


def test_growing_takes_whole_blocks_and_evicts() -> None:
    cache = PrefixCache(capacity=3, block=2)
    first = kept(cache, [1, 2])
    name, _ = filled(cache, [3])
    assert cache.grow(name, 2) and cache.pinned == 1
    assert cache.grow(name, 3) and cache.grow(name, 5) and cache.pinned == 3
    assert cache.take_operations() == (Free(first),)
    assert not cache.grow(name, 7)


def test_nothing_is_kept_or_shared_when_disabled() -> None:
    cache = PrefixCache(capacity=8, block=2, enabled=False)
    first = kept(cache, [1, 2, 3])
    assert filled(cache, [1, 2, 3])[1] == 0
    assert cache.take_operations() == (Free(first),)
