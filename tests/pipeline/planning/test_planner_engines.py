"""Nodes that offer several engines: a plan takes the one that gives it the most, each for itself."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import NOTHING, divided, model, network, node

from pipeline.planning.pacing_table import chain_rate, pacing_table
from pipeline.planning.plan import NodeOffer, Plan, Wish
from pipeline.planning.planner import plan
from pipeline.planning.search import AS_GOOD
from shards.errors import CapacityError
from shards.runtime import EngineName

SIZE = model(8)


def on(engine: EngineName, offer: NodeOffer, size_of_layer: int | None = None) -> NodeOffer:
    """The offer on an engine, for which layers may have another size."""
    size = None if size_of_layer is None else model([size_of_layer] * len(SIZE.layers))
    return offer.model_copy(update={"costs": offer.costs.model_copy(update={"engine": engine}), "size": size})


def both(name: str, openvino: float, llamacpp: float, memory: int = 10**9, by_row: float = 0.1) -> list[NodeOffer]:
    """A node with the milliseconds of a layer on each; `by_row` is llama.cpp's."""
    return [
        on("openvino-paged", node(name, openvino, memory)),
        on("llamacpp", node(name, llamacpp, memory, by_row=by_row)),
    ]


def engines(made: Plan) -> dict[str, str]:
    return {stage.node: stage.engine for chain in made.chains for stage in chain.stages}


def made(*offers: list[NodeOffer], users: int = 4, stages: int | None = None) -> Plan:
    wish = Wish(users=users, context=256, stages=stages, replicas=False)
    return plan(SIZE, [offer for of_node in offers for offer in of_node], (), wish, NOTHING)


def test_each_node_runs_what_is_faster_there() -> None:
    mixed = made(both("a", 1.0, 2.0), both("b", 3.0, 1.0), stages=2)
    assert engines(mixed) == {"a": "openvino-paged", "b": "llamacpp"}
    assert len(mixed.chains) == 1 and set(mixed.without) == {"a", "b"} and not mixed.left_out


def test_what_is_faster_depends_on_the_users() -> None:
    one_row_is_cheap = both("a", 1.5, 1.0, by_row=1.0)
    assert engines(made(one_row_is_cheap, users=1)) == {"a": "llamacpp"}
    assert engines(made(one_row_is_cheap, users=8)) == {"a": "openvino-paged"}


def test_an_engine_whose_weights_do_not_fit_is_not_taken() -> None:
    small, large = node("a", 2.0, memory=100), node("a", 1.0, memory=100)
    tight = [on("openvino-paged", large, 20), on("llamacpp", small, 10)]
    found = plan(SIZE, tight, (), Wish(users=1, context=256), NOTHING)
    assert engines(found) == {"a": "llamacpp"}
    assert found.chains[0].stages[0].memory == 1 + 5 + 5 + 8 * 10


def test_a_node_is_left_out_once_and_what_is_missing_is_told_once() -> None:
    (left_out,) = made(both("a", 1.0, 2.0), both("snail", 500.0, 400.0)).left_out
    assert left_out.node == "snail" and "400.00 ms each" in left_out.reason
    with pytest.raises(CapacityError, match=r"2 stages need as many nodes, and 1 are there"):
        made(both("a", 1.0, 2.0), stages=2)
    with pytest.raises(CapacityError) as error:
        made(both("a", 1.0, 2.0, memory=30), both("b", 1.0, 2.0, memory=9))
    assert str(error.value).count("a's PC offers") == 1 and str(error.value).count("b's PC offers") == 1


def test_a_layer_is_never_divided_with_a_node_that_runs_llama_cpp() -> None:
    alike = [node(name, 10.0, head=0.05) for name in "ab"]
    chosen = [divided(on("openvino-paged", alike[0]), 4.0), on("llamacpp", alike[1])]
    sizes = range(3, 9)
    plans = [plan(model(size), chosen, (), Wish(users=4, context=256, stages=2), NOTHING) for size in sizes]
    assert all(edge == int(edge) for each in plans for edge in each.chains[0].edges)
    halved = [divided(offer, 4.0) for offer in chosen]
    plans = [plan(model(size), halved, (), Wish(users=4, context=256, stages=2), NOTHING) for size in sizes]
    assert any(edge != int(edge) for each in plans for edge in each.chains[0].edges)


def test_what_is_predicted_of_a_chain_is_that_of_its_engines() -> None:
    offers = [*both("a", 1.0, 2.0), *both("b", 3.0, 1.0)]
    links = network(["a", "b"], latency_ms=2.0)
    found = plan(SIZE, offers, links, Wish(users=4, context=256, stages=2), NOTHING)
    (chain,) = found.chains
    assert chain_rate(chain, SIZE, offers, links) == pytest.approx(found.prediction.many_users)
    assert pacing_table(chain, SIZE, offers[::-1], links) == pacing_table(chain, SIZE, offers, links)
    with pytest.raises(KeyError):
        chain_rate(chain, SIZE, [offers[0], offers[2]], links)


_MS = st.sampled_from([0.5, 1.0, 2.0, 4.0])


@st.composite
def fleets(draw: st.DrawFn, most: int) -> list[list[NodeOffer]]:
    found = []
    for name in "abcdefgh"[: draw(st.integers(1, most))]:
        memory = draw(st.sampled_from([45, 70, 100, 10**6]))
        offers = [
            on("openvino-paged", node(name, draw(_MS), memory, by_row=draw(st.sampled_from([0.05, 0.5])))),
            on("llamacpp", node(name, draw(_MS), memory, by_row=draw(st.sampled_from([0.05, 0.5]))), draw(_SIZES)),
        ]
        found.append(draw(st.sampled_from([offers, offers[:1], offers[1:]])))
    return found


_SIZES = st.sampled_from([8, 10, 14])


def best_by_trying(fleet: list[list[NodeOffer]], wish: Wish) -> float | None:
    """The most tokens a second over all ways to give each node one engine."""
    rates = []
    for offers in product(*fleet):
        try:
            rates.append(plan(SIZE, offers, (), wish, NOTHING).prediction.many_users)
        except CapacityError:
            continue
    return max(rates, default=None)


@given(fleets(3), st.integers(1, 5), st.booleans())
@settings(max_examples=60)
def test_no_choice_of_engines_is_better(fleet: list[list[NodeOffer]], users: int, replicas: bool) -> None:
    wish = Wish(users=users, context=256, replicas=replicas)
    best, offers = best_by_trying(fleet, wish), [offer for of_node in fleet for offer in of_node]
    if best is None:
        with pytest.raises(CapacityError):
            plan(SIZE, offers, (), wish, NOTHING)
        return
    found = plan(SIZE, offers, (), wish, NOTHING)
    carried = [stage.node for chain in found.chains for stage in chain.stages]
    assert len(set(carried)) == len(carried)
    assert found.prediction.many_users >= AS_GOOD * best - 1e-6
    assert plan(SIZE, offers[::-1], (), wish, NOTHING) == found


def test_a_large_fleet_is_climbed_over_engines_too() -> None:
    slow, fast = 4.0, 1.0
    fleet = [both(f"pc-{i:02}", *((slow, fast) if i % 3 else (fast, slow))) for i in range(12)]
    found = made(*fleet, users=16)
    assert all(
        engine == ("llamacpp" if int(name.removeprefix("pc-")) % 3 else "openvino-paged")
        for name, engine in engines(found).items()
    )
