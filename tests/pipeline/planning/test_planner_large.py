from __future__ import annotations

from itertools import pairwise

import pytest
from small_fleets import NOTHING, office

from pipeline.planning import search
from pipeline.planning.plan import Link, ModelSize, NodeOffer, Plan, Wish
from pipeline.planning.planner import plan
from pipeline.planning.prediction import Times
from pipeline.planning.room import Room, kv_tokens
from pipeline.planning.search import Search

CASES = [(0.15, 1), (0.15, 4), (0.3, 4), (0.3, 16), (1.5, 8), (1.5, 64)]
"""Share of the model that a node holds, and users."""


def simple_rates(size: ModelSize, offers: list[NodeOffer], links: list[Link], wish: Wish) -> list[float]:
    """What simple plans give: the fastest or largest n nodes in a chain or as replicas, layers by speed or memory."""
    times, depth = Times(size, offers, links), len(size.layers)
    speeds = [1 / times.parts(number, 1).layer for number in range(len(offers))]
    rates = []

    def rate(nodes: tuple[int, ...], shares: list[float], users: int) -> float | None:
        edges = [round(depth * sum(shares[:i]) / sum(shares)) for i in range(len(shares) + 1)]
        layers = [end - first for first, end in pairwise(edges)]
        fits = all(
            end > first and size.stage(first, end, kv_tokens(users, wish.context)) <= offers[number].memory
            for number, (first, end) in zip(nodes, pairwise(edges), strict=True)
        )
        return times.predict(nodes, layers, users, wish).many_users if fits else None

    for key in (lambda n: -speeds[n], lambda n: -offers[n].memory):
        order = sorted(range(len(offers)), key=key)
        for count in range(1, len(order) + 1):
            nodes = tuple(order[:count])
            rates.append(rate(nodes, [speeds[n] for n in nodes], wish.users))
            rates.append(rate(nodes, [offers[n].memory for n in nodes], wish.users))
            if wish.users % count == 0:
                alone = [rate((n,), [1.0], wish.users // count) for n in nodes]
                rates.append(sum(each for each in alone if each) if all(alone) else None)
    return [each for each in rates if each is not None]


def planned(memory: float, users: int) -> tuple[Plan, ModelSize, list[NodeOffer], list[Link], Wish]:
    size, offers, links = office(16, memory, seed=users)
    wish = Wish(users=users, context=2048)
    return plan(size, offers, links, wish, NOTHING), size, offers, links, wish


@pytest.mark.parametrize(("memory", "users"), CASES)
def test_sixteen_nodes_are_not_worse_than_simple_plans(memory: float, users: int) -> None:
    found, size, offers, links, wish = planned(memory, users)
    simple = simple_rates(size, offers, links, wish)
    assert simple
    assert found.prediction.many_users >= 0.97 * max(simple)
    budgets = {offer.id: offer.memory for offer in offers}
    assert all(stage.memory <= budgets[stage.node] for chain in found.chains for stage in chain.stages)
    assert sum(chain.users for chain in found.chains) == users
    assert {out.node for out in found.left_out} | set(found.without) == set(budgets)


@pytest.mark.parametrize(("memory", "users"), CASES)
def test_the_search_ends(memory: float, users: int) -> None:
    size, offers, links = office(16, memory, seed=users)
    wish = Wish(users=users, context=2048)
    looking = Search(Times(size, offers, links), Room(size, offers, NOTHING), 16, 126, wish)
    looking.run()
    assert looking.candidates.work < 45_000


def test_large_fleets_are_planned_the_same_each_time() -> None:
    found, size, offers, links, wish = planned(0.3, 4)
    assert plan(size, offers[::-1], links[::-1], wish, NOTHING) == found


@pytest.mark.parametrize("seed", range(8))
def test_climbing_finds_what_looking_at_everything_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size, offers, links = office(5, (0.4, 0.6, 1.5)[seed % 3], seed)
    wish = Wish(users=4, context=2048)
    best = plan(size, offers, links, wish, NOTHING).prediction.many_users
    monkeypatch.setattr(search, "_ALL_CHAINS", 0)
    assert plan(size, offers, links, wish, NOTHING).prediction.many_users >= search.AS_GOOD * best
