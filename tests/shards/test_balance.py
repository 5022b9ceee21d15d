from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.balance import Costs, balance
from shards.errors import ConfigurationError
from shards.manifest import WeightSpans


def tables(*, halves: bool) -> st.SearchStrategy[list[Costs]]:
    """One to three tables of the same model."""

    def of_depth(depth: int) -> st.SearchStrategy[list[Costs]]:
        part = st.lists(st.integers(1, 20), min_size=depth, max_size=depth).map(tuple)
        one = st.builds(
            lambda attention, rest, **others: Costs(
                layers=tuple(map(sum, zip(attention, rest, strict=True))),
                attention=attention if halves else (),
                **others,
            ),
            part,
            part,
            embed=st.integers(0, 20),
            head=st.integers(0, 60),
            fixed=st.integers(0, 5),
        )
        return st.lists(one, min_size=1, max_size=3)

    return st.integers(1, 6 if halves else 9).flatmap(of_depth)


def stage_cost(costs: Costs, begin: float, end: float) -> float:
    """By going through what is between two edges, half by half."""
    depth = len(costs.layers)
    cost = costs.fixed + costs.embed * (begin == 0) + costs.head * (end == depth)
    for half in range(int(2 * begin), int(2 * end)):
        attention = costs.attention[half // 2] if costs.attention else costs.layers[half // 2] / 2
        cost += costs.layers[half // 2] - attention if half % 2 else attention
    return cost


def merit(costs: Sequence[Costs], edges: Sequence[float]) -> tuple[float, float]:
    stages = [max(stage_cost(table, *stage) for table in costs) for stage in pairwise(edges)]
    return max(stages), sum(cost**2 for cost in stages)


def check(costs: list[Costs], data: st.DataObject, step: float) -> None:
    depth = len(costs[0].layers)
    stages = data.draw(st.integers(1, min(depth, 4)))
    edges = balance(costs, stages)
    assert (edges[0], edges[-1], len(edges)) == (0, depth, stages + 1)
    places = [step * place for place in range(1, int(depth / step))]
    splits = [(0, *cuts, depth) for cuts in combinations(places, stages - 1)]
    allowed = [split for split in splits if all(end - begin >= 1 for begin, end in pairwise(split))]
    assert edges in allowed
    assert merit(costs, edges) == min(merit(costs, split) for split in allowed)


@given(tables(halves=False), st.data())
def test_no_other_split_is_better(costs: list[Costs], data: st.DataObject) -> None:
    check(costs, data, 1)


@given(tables(halves=True), st.data())
def test_no_other_split_is_better_where_layers_divide(costs: list[Costs], data: st.DataObject) -> None:
    check(costs, data, 0.5)


def test_a_heavy_head_gets_fewer_layers() -> None:
    assert balance([Costs(0, (1.0,) * 30, 8.0)], 2) == (0, 19, 30)


def test_half_a_layer_can_be_what_is_missing() -> None:
    whole = Costs(0, (4.0,) * 20, 13.0)
    assert balance([whole], 2) == (0, 12, 20)
    assert balance([Costs(0, (4.0,) * 20, 13.0, attention=(1.0,) * 20)], 2) == (0, 11.5, 20)


def test_the_worst_table_counts() -> None:
    few, many = (Costs(0, (1.0,) * 20, head) for head in (6.0, 2.0))
    assert [balance([costs], 2) for costs in (few, many)] == [(0, 13, 20), (0, 11, 20)]
    assert balance([few, many], 2) == (0, 13, 20)  # 13 and 7 + 6; with 12 it would be 8 + 6


def test_what_does_not_decide_is_dealt_evenly() -> None:
    assert balance([Costs(0, (1.0,) * 9, 100.0)], 3) == (0, 4, 8, 9)


@pytest.mark.parametrize("stages", [0, 5])
def test_impossible_numbers_of_stages_are_refused(stages: int) -> None:
    with pytest.raises(ConfigurationError, match=f"4 layers cannot be split into {stages} stages"):
        balance([Costs(0, (1.0,) * 4, 0)], stages)


def test_bytes_stand_in_for_a_measurement() -> None:
    spans = WeightSpans(
        shared=((0, 8),), embedding=((8, 100),), layers=(((100, 110), (120, 130)), ()), head=((8, 100),)
    )
    assert Costs.of_bytes(spans) == Costs(0.0, (20, 0), 92)
