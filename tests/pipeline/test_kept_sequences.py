"""Stages that hold so many sequences and no more: kept ones make room for new ones, in time for each stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Fork, Free
from pipeline.prefix_cache import PrefixCache
from pipeline.scheduler_config import SchedulerConfig
from shards.errors import ConfigurationError

BLOCK, MOST, RUNNING = 2, 5, 4


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.sampled_from(["rest", "free", "run"])),
        max_size=40,
    )
)
def test_stages_never_hold_more_than_they_can(requests: list[tuple[list[int], str]]) -> None:
    cache = PrefixCache(capacity=24, block=BLOCK, sequences=MOST)
    held: set[int] = set()
    running: dict[int, list[int]] = {}

    def apply() -> None:
        for operation in cache.take_operations():
            if isinstance(operation, Fork):
                assert operation.source in held
                held.add(operation.target)
            elif isinstance(operation, Free):
                held.discard(operation.sequence)
            assert len(held) <= MOST

    for tokens, then in requests:
        if len(running) == RUNNING:
            name, own = next(iter(running.items()))
            del running[name]
            cache.rest(name, len(own))
        opened = cache.open(tokens, spare=0)
        if opened is None:
            continue
        apply()
        name = opened[0]
        held.add(name)
        assert len(held) <= MOST
        cache.done(name, tokens, len(tokens))
        if then == "run":
            running[name] = tokens
        elif then == "rest":
            cache.rest(name, len(tokens))
        else:
            cache.free(name)
        apply()


def test_the_least_recently_used_goes() -> None:
    cache = PrefixCache(capacity=24, block=BLOCK, sequences=4)
    for n in range(3):
        name, _ = cache.open([n] * 4, spare=0) or (-1, 0)
        cache.done(name, [n] * 4, 4)
        cache.rest(name, 4)
    assert [cache.cached([n] * 5) for n in range(3)] == [4, 4, 4]
    assert cache.open([0] * 6, spare=0) == (3, 4)
    assert [cache.cached([n] * 5) for n in range(3)] == [4, 0, 4]


def test_as_many_running_as_held_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="64 sequences are to run at once, the stages hold 64"):
        SchedulerConfig(kv_tokens=64, block=32, context_length=64, max_sequences=64, kept_sequences=64)
