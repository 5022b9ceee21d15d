from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import NOTHING, divided, model, network, node

from pipeline.planning.halves import dealt, edges_of
from pipeline.planning.pacing_table import chain_rate, pacing_table, stage_times
from pipeline.planning.plan import ChainPlan, ModelSize, NodeOffer, Wish
from pipeline.planning.planner import plan
from pipeline.planning.prediction import HEAD_MS, STAGE_MS, Times, paces
from pipeline.planning.refining import WORTHWHILE

SIZE = model(12)
FREE = network("ab", latency_ms=0.0, bytes_per_second=1e12)
"""Links that cost nothing."""


def nodes(attention: float = 1.0, head: float = 10.0, memory: int = 10**9) -> list[NodeOffer]:
    """Two equal ones; a layer takes 4 ms a row."""
    each = [node(name, 4.0, memory, fixed=0.0, embed=0.0, head=head, by_row=1.0) for name in "ab"]
    return [divided(one, attention) for one in each]


def chain_of(offers: list[NodeOffer], size: ModelSize = SIZE) -> ChainPlan:
    """Their chain for 8 users."""
    (chain,) = plan(size, offers, FREE, Wish(users=8, context=256, stages=2, replicas=False), NOTHING).chains
    return chain


def test_edges_and_what_is_dealt_say_the_same() -> None:
    assert edges_of((7, 5), (True, False)) == (0, 7.5, 12)
    assert edges_of((7, 5), ()) == (0, 7, 12)
    assert dealt((0, 7.5, 12)) == ((7, 5), (True, False))
    assert dealt((0, 7, 12)) == ((7, 5), ())


@pytest.mark.parametrize(
    ("attention", "head", "edge"),
    [
        (1.0, 10.0, 7.5),  # 29 and 29 ms instead of 28 and 30
        (3.0, 6.0, 6.5),  # 27 and 27 instead of 28 and 26
        (3.0, 10.0, 7),  # 31 and 27 would be worse
        (1.9, 10.0, 7),  # 29.9 instead of 30 is not worth it
        (1.0, 8.0, 7),  # 28 and 28
    ],
)
def test_an_edge_is_moved_where_the_slowest_stage_gets_faster(attention: float, head: float, edge: float) -> None:
    assert chain_of(nodes(attention, head)).edges == (0, edge, 12)


def test_the_plan_and_its_predictions_count_the_half() -> None:
    offers = nodes()
    chain = chain_of(offers)
    first, tail = chain.stages
    assert (first.first_layer, first.end_layer, first.ends_after_attention) == (0, 8, True)
    assert (tail.first_layer, tail.end_layer, tail.begins_after_attention) == (7, 12, True)
    assert [first.memory, tail.memory] == [SIZE.stage(0, 8, 0), SIZE.stage(7, 12, 0)]  # layer 7 is on both
    assert chain.prediction.many_users == pytest.approx(8 * 1e3 / (2 * (STAGE_MS + 4 * 29.0)), rel=0.01)
    assert chain_rate(chain, SIZE, offers, FREE) == pytest.approx(chain.prediction.many_users)
    assert stage_times(chain, SIZE, offers, FREE)(1) == pytest.approx((29.0, 29.0))
    times = pacing_table(chain, SIZE, offers, FREE)
    assert times.table is not None and times.table[0] == (1, pytest.approx(STAGE_MS + 29.0))
    assert times.link_ms == pytest.approx(HEAD_MS, rel=0.01) and times.detour_ms == 0


def test_only_attentions_have_a_kv_cache() -> None:
    chain = chain_of(nodes(), model(12, kv_token=1))
    assert [stage.memory for stage in chain.stages] == [1 + 5 + 80 + 8 * 8 * 256, 1 + 5 + 50 + 4 * 8 * 256]


def test_an_edge_stays_where_memory_is_too_small_for_half_a_layer_more() -> None:
    enough = SIZE.stage(0, 8, 0)
    assert chain_of(nodes(memory=enough)).edges == (0, 7.5, 12)
    assert chain_of(nodes(memory=enough - 1)).edges == (0, 7, 12)


def test_a_node_that_does_not_know_what_attention_costs_has_whole_layers() -> None:
    one, other = nodes()
    assert chain_of([one, divided(other, None)]).edges == (0, 7, 12)


@st.composite
def chains(draw: st.DrawFn) -> tuple[ModelSize, list[NodeOffer], Wish]:
    some = st.sampled_from([0.5, 1.0, 2.0, 3.5])
    count = draw(st.integers(2, 4))
    offers = []
    for name in "abcd"[:count]:
        layer, by_row = draw(some), draw(st.sampled_from([0.3, 1.0]))
        made = node(name, layer, fixed=0.0, embed=draw(some), head=draw(some), by_row=by_row, rows=(1, 2, 3, 4, 5, 6))
        offers.append(divided(made, draw(st.sampled_from([0.1, 0.3, 0.6])) * layer))
    return model(draw(st.integers(count, 8))), offers, Wish(users=draw(st.integers(1, 6)), stages=count)


@given(chains())
@settings(deadline=None)
def test_no_move_of_edges_by_halves_makes_the_slowest_stage_faster(
    fleet: tuple[ModelSize, list[NodeOffer], Wish],
) -> None:
    size, offers, wish = fleet
    (whole,) = plan(size, [divided(offer, None) for offer in offers], (), wish, NOTHING).chains
    (found,) = plan(size, offers, (), wish, NOTHING).chains
    assert [stage.node for stage in found.stages] == [stage.node for stage in whole.stages]
    assert found.prediction.many_users == pytest.approx(chain_rate(found, size, offers, ()))

    times, (layers, _) = Times(size, offers, ()), dealt(whole.edges)
    nodes = tuple("abcd".index(stage.node) for stage in whole.stages)
    pace = min(paces(wish.users), key=lambda pace: times.step(nodes, pace.rows).period(layers, pace.in_flight))
    costs = [offers[number].costs for number in nodes]

    def slowest(edges: Sequence[float]) -> float:
        stages = []
        for cost, (begin, end) in zip(costs, pairwise(edges), strict=True):
            attention, layer = (part[pace.rows - 1] for part in (cost.attention, cost.layer))
            time = cost.embed[pace.rows - 1] * (begin == 0) + cost.head[pace.rows - 1] * (end == edges[-1])
            for half in range(int(2 * begin), int(2 * end)):
                time += layer - attention if half % 2 else attention
            stages.append(time)
        return max(stages)

    inner = product(*((edge, edge - 0.5, edge + 0.5) for edge in whole.edges[1:-1]))
    moved = [(0, *edges, whole.edges[-1]) for edges in inner]
    allowed = [edges for edges in moved if all(end - begin >= 1 for begin, end in pairwise(edges))]
    assert found.edges in allowed
    least = min(map(slowest, allowed))
    if found.edges != whole.edges:
        assert slowest(found.edges) == pytest.approx(least)
        assert found.prediction.many_users >= WORTHWHILE * whole.prediction.many_users * (1 - 1e-9)
    else:
        best = [dealt(edges) for edges in allowed if slowest(edges) == pytest.approx(least)]
        rates = [wish.users * 1e3 / times.period(nodes, layers, wish.users, halves) for layers, halves in best]
        assert min(rates) < WORTHWHILE * whole.prediction.many_users
