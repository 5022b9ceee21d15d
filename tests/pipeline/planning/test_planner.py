from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_fleets import NOTHING, model, network, node

from pipeline.planning.plan import Link, ModelSize, NodeOffer, Plan, Wish
from pipeline.planning.planner import plan
from shards.errors import CapacityError, ConfigurationError

WHOLE = model(12).stage(0, 12, 0)
HALF = WHOLE // 2 + 10


def made(
    offers: Sequence[NodeOffer], links: Sequence[Link] = (), size: ModelSize | None = None, **wish: int | bool | None
) -> Plan:
    return plan(size or model(12), offers, links, Wish.model_validate(wish), NOTHING)


def layers(found: Plan) -> list[dict[str, int]]:
    return [{stage.node: stage.end_layer - stage.first_layer for stage in chain.stages} for chain in found.chains]


# Which nodes


def test_equal_nodes_that_hold_the_model_are_replicas() -> None:
    found = made([node("a", 5.0), node("b", 5.0)], users=4)
    assert sorted(map(str, layers(found))) == ["{'a': 12}", "{'b': 12}"]
    assert [chain.users for chain in found.chains] == [2, 2]
    assert found.prediction.many_users == pytest.approx(2 * found.chains[0].prediction.many_users)
    assert found.prediction.one_user == found.chains[0].prediction.one_user
    assert found.left_out == ()


def test_replicas_can_be_declined() -> None:
    assert len(made([node("a", 5.0), node("b", 5.0)], users=4, replicas=False).chains) == 1


def test_nodes_too_small_for_it_share_the_model_by_their_speed() -> None:
    found = made([node("a", 2.0, WHOLE - 1), node("b", 1.0, WHOLE - 1)], users=8)
    (split,) = layers(found)
    assert (split["a"], split["b"]) == (4, 8)


def test_the_head_matrix_and_the_embedding_count() -> None:
    offers = [node(name, 1.0, WHOLE - 1, head=4.0) for name in "ab"]
    (chain,) = made(offers, users=8).chains
    assert [stage.end_layer - stage.first_layer for stage in chain.stages] == [8, 4]


def test_one_user_gets_the_fewest_and_fastest_nodes() -> None:
    found = made([node("a", 3.0), node("b", 1.0), node("c", 2.0)], users=1)
    assert layers(found) == [{"b": 12}]
    tight = made([node("a", 3.0, HALF), node("b", 1.0, HALF), node("c", 2.0, HALF)], users=1)
    assert [set(split) for split in layers(tight)] == [{"b", "c"}]


def test_a_far_node_is_avoided() -> None:
    offers = [node(name, 1.0, HALF) for name in "abc"]
    found = made(offers, network("abc", b=80.0), users=2)
    assert [set(split) for split in layers(found)] == [{"a", "c"}]
    (out,) = found.left_out
    assert out.node == "b"
    assert out.reason.endswith(": a step is 160.0 ms on the links to it and from it, and at most 0.6 ms on others'")


def test_neighbours_in_the_chain_are_those_with_the_good_link() -> None:
    offers = [node(name, 1.0, WHOLE // 3 + 10) for name in "abc"]
    links = [
        link.model_copy(update={"latency_ms": 50.0}) if {link.source, link.target} == {"a", "b"} else link
        for link in network("abc")
    ]
    (chain,) = made(offers, links, users=1).chains
    assert chain.stages[1].node == "c"


def test_a_number_of_stages_can_be_asked_for() -> None:
    offers = [node(name, 1.0) for name in "abcd"]
    assert [len(split) for split in layers(made(offers, users=8, stages=2))] == [2, 2]
    assert [len(split) for split in layers(made(offers, users=1, stages=3))] == [3]


def test_more_users_need_more_memory() -> None:
    size = model(12, kv_token=1)
    memory = size.stage(0, 12, 4 * 256)
    offers = [node("a", 1.0, memory), node("b", 1.0, memory)]
    assert [len(split) for split in layers(made(offers, size=size, users=1, context=1024))] == [1]
    found = made(offers, size=size, users=1, context=1025)
    assert [len(split) for split in layers(found)] == [2]
    assert found.chains[0].kv_tokens == 1280
    assert [chain.users for chain in made(offers, size=size, users=8, context=256).chains] == [4, 4]


# What it says


def test_a_node_ten_times_slower_is_left_out_with_the_figures() -> None:
    found = made([node("a", 1.0, HALF), node("b", 1.0, HALF), node("slow", 10.0, HALF)], users=4)
    assert [set(split) for split in layers(found)] == [{"a", "b"}]
    (out,) = found.left_out
    assert out.node == "slow"
    assert out.prediction_with is not None
    assert out.prediction_with.many_users < found.prediction.many_users
    with_it, without_it = out.prediction_with.many_users, found.prediction.many_users
    assert out.reason == (
        f"would make it {with_it:.1f} tok/s instead of {without_it:.1f}:"
        " its layers take 10.00 ms each, ten times a's PC's 1.00 ms"
    )


def test_a_node_that_adds_next_to_nothing_is_left_out() -> None:
    found = made([node("a", 1.0, by_row=1.0), node("slow", 60.0, by_row=1.0)], users=8)
    assert layers(found) == [{"a": 12}]
    (out,) = found.left_out
    assert out.prediction_with is not None
    assert 1.0 < out.prediction_with.many_users / found.prediction.many_users < 1.03
    assert out.reason.startswith("would add ") and out.reason.endswith("too little for a stage more")


def test_a_node_without_room_for_a_layer_says_so() -> None:
    (out,) = made([node("a"), node("tiny", memory=9)], users=1).left_out
    assert out.prediction_with is None
    assert out.reason == "offers 0 MB, and a single layer with its KV cache needs 0 MB"


def test_each_node_in_use_has_what_is_left_without_it() -> None:
    found = made([node("a", 1.0), node("b", 1.0)], users=4)
    alone = made([node("a", 1.0)], users=4)
    assert found.without == {"a": alone.prediction, "b": alone.prediction}
    assert alone.without == {"a": None}


# Bad wishes and offers


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="12 layers cannot be split into 13 stages"):
        made([node("a")], stages=13)


@pytest.mark.parametrize(("offers", "stages"), [([], None), ([node("a")], 2)])
def test_too_few_nodes_are_refused(offers: list[NodeOffer], stages: int | None) -> None:
    with pytest.raises(CapacityError, match=f"need as many nodes, and {len(offers)} are there"):
        made(offers, stages=stages)


@pytest.mark.parametrize("change", [{"rows": (1, 2, 2, 8)}, {"layer": (1.0,)}, {"head": (1.0, 1.0, 1.0, -1.0)}])
def test_a_profile_that_makes_no_sense_is_refused(change: dict[str, tuple[float, ...]]) -> None:
    offer = node("a").model_dump()
    with pytest.raises(ValidationError):
        NodeOffer.model_validate({**offer, "costs": {**offer["costs"], **change}})


# Laws

_FLEETS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 10.0]), st.integers(20, WHOLE)), min_size=1, max_size=4
).filter(lambda fleet: sum(memory - 20 for _, memory in fleet) >= WHOLE)


def _best(fleet: Sequence[tuple[float, int]], users: int, links: Sequence[Link] = ()) -> Plan:
    return made([node("abcd"[i], layer, memory) for i, (layer, memory) in enumerate(fleet)], links, users=users)


@given(_FLEETS, st.integers(1, 4), st.data())
@settings(deadline=None)
def test_a_better_node_makes_no_plan_worse(fleet: list[tuple[float, int]], users: int, data: st.DataObject) -> None:
    before = _best(fleet, users)
    index = data.draw(st.integers(0, len(fleet) - 1))
    layer, memory = fleet[index]
    better = data.draw(st.sampled_from([(layer / 2, memory), (layer, memory + 50), (layer / 4, 2 * memory)]))
    after = _best([*fleet[:index], better, *fleet[index + 1 :]], users)
    assert after.prediction.many_users >= 0.97 * before.prediction.many_users * (1 - 1e-9)


@given(_FLEETS, st.integers(1, 4), st.randoms())
@settings(deadline=None)
def test_the_order_of_what_is_told_does_not_matter(fleet: list[tuple[float, int]], users: int, chance: object) -> None:
    offers = [node("abcd"[i], layer, memory) for i, (layer, memory) in enumerate(fleet)]
    links = network([offer.id for offer in offers], latency_ms=1.0)
    found = made(offers, links, users=users)
    assert made(offers, links, users=users) == found
    assert made(offers[::-1], links[::-1], users=users) == found
