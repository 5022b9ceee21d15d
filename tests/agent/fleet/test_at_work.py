"""Chains at work against what is planned; the copies are a test's own."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.fleet.head import at_work
from agent.fleet.head.at_work import Held, Running
from agent.fleet.head.chain_opener import deal_users
from agent.fleet.head.placed_draft import PlacedDraft
from pipeline.planning.plan import ChainPlan, Plan, Prediction, StagePlan, Wish
from pipeline.running import Copy
from pipeline.speculation.drafter import Drafter, DrafterFacts

CONTEXT = 512


def chain(*stages: tuple[str, int], users: int = 2, kv_tokens: int = 2 * CONTEXT, rate: float = 10.0) -> ChainPlan:
    """A chain of (node, layers)."""
    planned, first = [], 0
    for node, layers in stages:
        planned.append(StagePlan(node=node, first_layer=first, end_layer=first + layers, memory=layers * kv_tokens))
        first += layers
    prediction = Prediction(one_user=rate / 2, users=users, many_users=rate, first_token_ms=1.0)
    return ChainPlan(stages=tuple(planned), users=users, kv_tokens=kv_tokens, prediction=prediction)


def plan(*chains: ChainPlan) -> Plan:
    return Plan(chains=chains, prediction=chains[0].prediction)


def running(of: ChainPlan) -> Running:
    return Running(cast(Copy, object()), of)


def drafted(of: ChainPlan, node: str, size: int, off: str | None = None) -> Running:
    """With a draft on a node."""
    model = SimpleNamespace(facts=DrafterFacts("small", off, node=node))
    return Running(cast(Copy, object()), of, PlacedDraft(size, cast(Drafter, model)))


def test_chains_on_the_same_places_with_room_enough_are_kept() -> None:
    one, two = running(chain(("a", 10), ("b", 20))), running(chain(("c", 30)))
    same, smaller = chain(("c", 30), users=1), chain(("a", 10), ("b", 20), kv_tokens=CONTEXT)
    assert at_work.kept(plan(same, smaller), [one, two]) == {same: two, smaller: one}


@pytest.mark.parametrize(
    "other",
    [
        chain(("a", 11), ("b", 19)),
        chain(("b", 10), ("a", 20)),
        chain(("a", 30)),
        chain(("a", 10), ("b", 20), kv_tokens=3 * CONTEXT),
    ],
)
def test_others_are_not(other: ChainPlan) -> None:
    assert at_work.kept(plan(other), [running(chain(("a", 10), ("b", 20)))]) == {}


def test_another_half_is_another_place() -> None:
    whole = chain(("a", 10), ("b", 20))
    first, tail = whole.stages
    first = first.model_copy(update={"ends_after_attention": True})
    tail = tail.model_copy(update={"first_layer": 9, "begins_after_attention": True})
    divided = whole.model_copy(update={"stages": (first, tail)})
    assert at_work.kept(plan(divided), [running(whole)]) == {}
    assert at_work.outline(plan(divided), str.upper) == "A 0-9½ - B 9½-29"


def test_a_chain_is_kept_for_one_of_two() -> None:
    same = chain(("a", 30))
    again = chain(("a", 30), users=1)
    assert len(at_work.kept(plan(same, again), [running(same)])) == 1


def test_a_copy_that_is_kept_keeps_its_memory() -> None:
    old = running(chain(("a", 30)))
    smaller = chain(("a", 30), users=1, kv_tokens=CONTEXT, rate=7.0)
    new = old.following(smaller)
    assert new.copy is old.copy
    assert (new.plan.users, new.plan.prediction) == (1, smaller.prediction)
    assert (new.plan.kv_tokens, new.plan.stages) == (old.plan.kv_tokens, old.plan.stages)
    assert at_work.memory([new.plan, chain(("a", 1), ("b", 1), kv_tokens=1)]) == {"a": 60 * CONTEXT + 1, "b": 1}


def dealt(wish: Wish, *plans: ChainPlan) -> list[Any]:
    return [(of.stages[0].node, of.users) for of in deal_users(plans, wish)]


def test_users_of_another_wish_are_dealt_by_rates() -> None:
    fast = chain(("a", 30), users=3, kv_tokens=100 * CONTEXT, rate=30.0)
    slow = chain(("b", 30), users=1, kv_tokens=100 * CONTEXT, rate=10.0)
    assert dealt(Wish(users=4, context=CONTEXT), fast, slow) == [("a", 3), ("b", 1)]
    assert dealt(Wish(users=8, context=CONTEXT), fast, slow) == [("a", 6), ("b", 2)]
    assert dealt(Wish(users=1, context=CONTEXT), fast, slow) == [("a", 1)]


def test_users_for_whose_context_there_is_no_room_wait() -> None:
    small = chain(("a", 30), users=2, kv_tokens=2 * CONTEXT)
    assert dealt(Wish(users=8, context=CONTEXT), small) == [("a", 2)]
    assert dealt(Wish(users=2, context=2 * CONTEXT), small) == [("a", 1)]
    assert dealt(Wish(users=2, context=4 * CONTEXT), small) == []
    assert dealt(Wish(users=2, context=CONTEXT)) == []


def test_a_draft_takes_memory_until_it_is_off() -> None:
    plans = chain(("a", 30)), chain(("b", 10))
    one, two = drafted(plans[0], "c", 5), drafted(plans[1], "a", 7)
    assert Held.by([one, two]) == (at_work.memory(plans) + Counter(c=5, a=7), Counter("ca"))
    off = drafted(plans[0], "c", 5, "its process has ended")
    assert Held.by([off]) == (at_work.memory(plans[:1]), Counter())
    assert at_work.drafts([one, off, running(plans[0])]) == [one.draft]
    assert at_work.carriers([off, two]) == {"a", "b", "c"}
    assert one.following(chain(("a", 30), users=1)).draft is one.draft


def test_drafts_make_way_for_layers_but_for_the_heads_own() -> None:
    """Nothing is counted twice: neither layers that stay nor a draft that leaves with its chain."""
    same, more = chain(("a", 30)), chain(("b", 10), ("c", 20))
    stays, at_head = drafted(same, "b", 5), drafted(chain(("d", 30)), "a", 7)
    wanted = plan(same, more)
    assert at_work.in_the_way(wanted, [stays, at_head], head="a") == [stays.draft]
    whole = at_work.memory([same, more])
    assert at_work.together(wanted, [stays], [], head="a") == (whole, Counter())
    assert at_work.together(wanted, [at_head], [], head="a") == (whole + Counter(a=7), Counter("a"))
    leaving = at_work.together(wanted, [], [stays], head="a")
    assert leaving == (whole + at_work.memory([same]) + Counter(b=5), Counter("b"))
    taken = at_work.together(wanted, [drafted(same, "e", 5)], [], head="a").taken
    assert taken == whole + Counter(e=5)
    assert at_work.fits(taken, dict(taken)) and not at_work.fits(taken, dict(taken) | {"e": 4})
