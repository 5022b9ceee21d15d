from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from small_fleets import model, node

from pipeline.planning.plan import ModelSize, NodeOffer, Wish
from pipeline.planning.planner import plan
from pipeline.planning.room import Reserve
from shards.errors import CapacityError

GB = 10**9
SIZE = model((GB,) * 8, embedding=GB, head=GB, shared=0, kv_token=100_000)
"""10 GB of weights, and 0.8 MB of KV cache a token."""
RESERVE = Reserve(0.0, GB)


def error(memory: Sequence[float], size: ModelSize = SIZE, **wish: int) -> CapacityError:
    offers: list[NodeOffer] = [node(f"pc-{number}", memory=int(gb * GB)) for number, gb in enumerate(memory)]
    with pytest.raises(CapacityError) as caught:
        plan(size, offers, [], Wish(**wish), RESERVE)
    return caught.value


def test_what_is_missing_is_said_in_all_and_for_each_node() -> None:
    failure = error([6.0, 5.0], users=1, context=2560)
    # 10 GB of weights, 2 GB of KV cache and a reserve of 1 GB on each: 14 GB and 50 MB in 11 GB
    assert failure.what.startswith(
        "the model does not fit: for 1 user with 2560 tokens of context 3.05 GB of memory are missing in all"
    )
    assert "pc-0's PC offers 6.00 GB and would need" in failure.what
    assert "pc-1's PC offers 5.00 GB and would need" in failure.what


def test_the_hint_is_what_would_fit() -> None:
    failure = error([9.0, 6.0], users=4, context=2560)
    assert failure.hint is not None
    assert failure.hint.startswith(
        "It would fit for 1 user with 2560 tokens of context, or for 4 users with 768 tokens"
    )
    more = {name: float(gb) for gb, name in re.findall(r"([\d.]+) GB more on (pc-\d)'s PC", failure.hint)}
    offers = [node("pc-0", memory=int((9 + more.get("pc-0", 0) + 0.01) * GB))]
    offers += [node("pc-1", memory=int((6 + more.get("pc-1", 0) + 0.01) * GB))]
    for fits in (Wish(users=1, context=2560), Wish(users=4, context=768)):
        assert plan(SIZE, [node("pc-0", memory=9 * GB), node("pc-1", memory=6 * GB)], [], fits, RESERVE)
    for fails in (Wish(users=2, context=2560), Wish(users=4, context=1024)):
        with pytest.raises(CapacityError):
            plan(SIZE, [node("pc-0", memory=9 * GB), node("pc-1", memory=6 * GB)], [], fails, RESERVE)
    assert plan(SIZE, offers, [], Wish(users=4, context=2560), RESERVE)


def test_a_node_too_small_to_help_is_named() -> None:
    assert "pc-1's PC offers 50 MB, too little to help" in error([8.0, 0.05], users=1, context=256).what


def test_when_nothing_smaller_fits_only_memory_helps() -> None:
    failure = error([3.0], users=4)
    assert failure.hint is not None and re.fullmatch(r"It would fit with [\d.]+ GB more on pc-0's PC\.", failure.hint)


def test_many_nodes_are_counted_too() -> None:
    failure = error([2.5] * 7, users=4)
    assert "missing in all" in failure.what and failure.hint is not None
