from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.balance import Costs, balance
from shards.errors import ConfigurationError
from shards.manifest import WeightSpans

COSTS = st.builds(
    Costs,
    embed=st.integers(0, 20),
    layers=st.lists(st.integers(0, 20), min_size=1, max_size=9).map(tuple),
    head=st.integers(0, 60),
)


def stage_costs(costs: Costs, edges: tuple[int, ...]) -> list[float]:
    stages: list[float] = [sum(costs.layers[first:end]) for first, end in pairwise(edges)]
    stages[0] += costs.embed
    stages[-1] += costs.head
    return stages


def merit(costs: Costs, edges: tuple[int, ...]) -> tuple[float, float]:
    stages = stage_costs(costs, edges)
    return max(stages), sum(cost**2 for cost in stages)


@given(COSTS, st.data())
def test_no_other_split_is_better(costs: Costs, data: st.DataObject) -> None:
    depth = len(costs.layers)
    stages = data.draw(st.integers(1, depth))
    edges = balance(costs, stages)
    assert (edges[0], edges[-1], len(edges)) == (0, depth, stages + 1)
    assert all(first < end for first, end in pairwise(edges))
    others = [(0, *cuts, depth) for cuts in combinations(range(1, depth), stages - 1)]
    assert merit(costs, edges) == min(merit(costs, other) for other in others)


def test_a_heavy_head_gets_fewer_layers() -> None:
    assert balance(Costs(0, (1.0,) * 30, 8.0), 2) == (0, 19, 30)


def test_what_does_not_decide_is_dealt_evenly() -> None:
    assert balance(Costs(0, (1.0,) * 9, 100.0), 3) == (0, 4, 8, 9)


@pytest.mark.parametrize("stages", [0, 5])
def test_impossible_numbers_of_stages_are_refused(stages: int) -> None:
    with pytest.raises(ConfigurationError, match=f"4 layers cannot be split into {stages} stages"):
        balance(Costs(0, (1.0,) * 4, 0), stages)


def test_bytes_stand_in_for_a_measurement() -> None:
    spans = WeightSpans(
        shared=((0, 8),), embedding=((8, 100),), layers=(((100, 110), (120, 130)), ()), head=((8, 100),)
    )
    assert Costs.of_bytes(spans) == Costs(0.0, (20, 0), 92)
