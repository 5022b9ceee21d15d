from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from brute_force import BruteForce
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import NOTHING, model, node

from pipeline.planning.plan import HEAD, Link, ModelSize, NodeOffer, Plan, Wish
from pipeline.planning.planner import plan
from pipeline.planning.room import kv_tokens
from shards.errors import CapacityError

_MS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0])


def _curve(*steps: float) -> st.SearchStrategy[tuple[float, ...]]:
    """Times that grow with the rows, cliffs included."""
    return st.lists(st.sampled_from(steps), min_size=3, max_size=3).map(lambda some: tuple(accumulate(some)))


@st.composite
def offers(draw: st.DrawFn, most: int, whole: int, least_memory: int) -> list[NodeOffer]:
    found = []
    for name in "abcd"[: draw(st.integers(1, most))]:
        share = draw(st.sampled_from([0.2, 0.4, 0.6, 0.8, 1.0, 1.5]))
        found.append(
            node(
                name,
                draw(_curve(0.0, 0.5, 1.0, 2.0, 5.0)),
                least_memory + int(share * whole) + draw(st.integers(0, 9)),
                rows=(1, 2, 4),
                fixed=draw(_curve(0.0, 0.1, 1.0)),
                embed=draw(_curve(0.0, 0.1)),
                head=draw(_curve(0.0, 1.0, 3.0)),
            )
        )
    return found


@st.composite
def links(draw: st.DrawFn, names: list[str]) -> list[Link]:
    """Some are measured; hidden states of the models here are some 300 bytes."""
    ends = [*names, HEAD]
    pairs = [(a, b) for a in ends for b in ends if a != b]
    return [
        Link(source=a, target=b, latency_ms=draw(_MS), bytes_per_second=draw(st.sampled_from([3e5, 1e8])))
        for a, b in draw(st.lists(st.sampled_from(pairs), unique=True))
    ]


@st.composite
def problems(
    draw: st.DrawFn, most_nodes: int, most_layers: int, sizes: st.SearchStrategy[int] | None = None
) -> tuple[ModelSize, list[NodeOffer], list[Link], Wish]:
    layers = draw(st.integers(1, most_layers))
    size = model(
        [draw(sizes) for _ in range(layers)] if sizes is not None else layers,
        embedding=draw(st.integers(0, 30)),
        head=draw(st.integers(0, 30)),
        kv_token=draw(st.sampled_from([0, 0, 1])),
    )
    wish = Wish(
        users=draw(st.integers(1, 3)),
        context=draw(st.integers(1, 256)),
        replicas=draw(st.sampled_from([True, True, False])),
        stages=draw(st.sampled_from([None] * 5 + [1, 2])) if layers > 1 else None,
    )
    tokens = kv_tokens(wish.users, wish.context)
    whole = size.stage(0, layers, tokens)
    one_layer = max(size.layers) + size.shared + tokens * size.kv_token
    found = draw(offers(most_nodes, whole, one_layer if sizes is not None else 0))
    return size, found, draw(links([offer.id for offer in found])), wish


def check(made: Plan, size: ModelSize, found: list[NodeOffer], wish: Wish) -> None:
    """What holds for every plan."""
    memory = {offer.id: offer.memory for offer in found}
    assert sum(chain.users for chain in made.chains) == wish.users == made.prediction.users
    used = [stage.node for chain in made.chains for stage in chain.stages]
    assert len(used) == len(set(used))
    assert set(made.without) == set(used)
    assert {out.node for out in made.left_out} == set(memory) - set(used)
    assert wish.replicas or len(made.chains) == 1
    for chain in made.chains:
        edges = [stage.first_layer for stage in chain.stages] + [chain.stages[-1].end_layer]
        assert edges[0] == 0 and edges[-1] == len(size.layers) and all(a < b for a, b in pairwise(edges))
        assert chain.kv_tokens == kv_tokens(chain.users, wish.context)
        assert wish.stages in (None, len(chain.stages))
        for stage in chain.stages:
            assert stage.memory == size.stage(stage.first_layer, stage.end_layer, chain.kv_tokens)
            assert stage.memory <= memory[stage.node]
    assert made.prediction.many_users == pytest.approx(sum(chain.prediction.many_users for chain in made.chains))
    assert made.prediction.one_user == max(chain.prediction.one_user for chain in made.chains)


def compare(size: ModelSize, found: list[NodeOffer], ways: list[Link], wish: Wish) -> None:
    """The planner must find the best rate of each number of stages that it may choose."""
    rates = BruteForce(size, found, ways, wish).rates()
    if not rates:
        with pytest.raises(CapacityError):
            plan(size, found, ways, wish, NOTHING)
        return
    made = plan(size, found, ways, wish, NOTHING)
    check(made, size, found, wish)
    best = max(rates.values())
    as_good = {stages for stages, rate in rates.items() if rate >= 0.97 * best}
    stages = sum(len(chain.stages) for chain in made.chains)
    assert stages == min(as_good)
    assert 0.97 * best * (1 - 1e-9) <= made.prediction.many_users <= rates[stages] * (1 + 1e-9)
    for name, left in made.without.items():
        others = BruteForce(size, [offer for offer in found if offer.id != name], ways, wish).rates()
        assert (left is None) == (not others)
        if left is not None:
            assert 0.97 * (1 - 1e-9) <= left.many_users / max(others.values()) <= 1 + 1e-9


@given(problems(most_nodes=3, most_layers=6))
@settings(max_examples=150, deadline=None)
def test_three_nodes(problem: tuple[ModelSize, list[NodeOffer], list[Link], Wish]) -> None:
    compare(*problem)


@given(problems(most_nodes=4, most_layers=4))
@settings(max_examples=50, deadline=None)
def test_four_nodes(problem: tuple[ModelSize, list[NodeOffer], list[Link], Wish]) -> None:
    compare(*problem)


@given(problems(most_nodes=3, most_layers=6, sizes=st.integers(5, 40)))
@settings(max_examples=150, deadline=None)
def test_layers_of_different_sizes_fit_where_they_can(
    problem: tuple[ModelSize, list[NodeOffer], list[Link], Wish],
) -> None:
    size, found, ways, wish = problem
    if BruteForce(size, found, ways, wish).rates():
        check(plan(size, found, ways, wish, NOTHING), size, found, wish)
    else:
        with pytest.raises(CapacityError):
            plan(size, found, ways, wish, NOTHING)


def test_the_best_pace_need_not_be_the_most_promising() -> None:
    found = [
        node("a", (1.0, 2.0, 5.0), rows=(1, 2, 4), fixed=0.0, embed=0.0, head=2.0),
        node("b", (3.0, 3.0, 5.0), rows=(1, 2, 4), fixed=0.0, embed=0.0, head=2.0),
    ]
    compare(model(5), found, [], Wish(users=6, stages=2))
