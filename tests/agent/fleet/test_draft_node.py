"""Which node carries a draft."""

from __future__ import annotations

from typing import Any

import pytest

from agent.fleet.head.draft_node import AUTO, HEAD_PC, Candidate, Choice, choose

HEAD, NEEDED, STEP_MS = "key of desk", 100_000_000, 10.0


def node(name: str, **changes: Any) -> Candidate:
    return Candidate(**{"key": f"key of {name}", "name": name, "room": NEEDED, "round_trip_ms": 1.0, **changes})


DESK = node("desk", round_trip_ms=0.0, problem="it carries layers")


def chosen(wanted: str, *nodes: Candidate) -> Choice:
    return choose(wanted, HEAD, (DESK, *nodes), NEEDED, STEP_MS)


def test_the_nearest_idle_node_drafts() -> None:
    assert chosen(AUTO, node("far", round_trip_ms=3.0), node("near", round_trip_ms=2.0)).node == "key of near"


@pytest.mark.parametrize(
    "other",
    [
        node("other", problem="it carries layers"),
        node("other", problem="it is left out"),
        node("other", room=NEEDED - 1),
        node("other", round_trip_ms=10.1),
    ],
)
def test_where_no_other_is_of_use_the_heads_pc_drafts(other: Candidate) -> None:
    assert chosen(AUTO, other) == Choice(HEAD)
    assert chosen(AUTO, other, node("fits")).node == "key of fits"


def test_a_heads_pc_that_is_idle_itself_is_the_nearest() -> None:
    idle = node("desk", round_trip_ms=0.0)
    assert choose(AUTO, HEAD, (idle, node("other")), NEEDED, STEP_MS) == Choice(HEAD)


def test_each_chain_has_a_node_of_its_own_if_there_are_enough() -> None:
    assert chosen(AUTO, node("near", drafts=1), node("far", round_trip_ms=9.0)).node == "key of far"
    assert chosen(AUTO, node("near", drafts=1), node("far", round_trip_ms=11.0)).node == "key of near"


def test_what_is_asked_for_is_done() -> None:
    far = node("far", round_trip_ms=50.0)
    assert chosen(HEAD_PC, node("near")) == Choice(HEAD)
    assert chosen("far", node("near"), far) == chosen(far.key, node("near"), far) == Choice(far.key)
    assert chosen("desk", node("near")) == Choice(HEAD)  # it carries layers, as the head's PC does anyway


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (node("near"), "no node that is here is called 'far'"),
        (node("far", problem="it carries layers"), "far: it carries layers"),
        (node("far", room=2_000_000), "far: the draft takes 100 MB, and it has room for 2 MB"),
        (node("far", room=-5), "far: the draft takes 100 MB, and it has room for 0 MB"),
    ],
)
def test_where_that_cannot_be_it_says_why(other: Candidate, why: str) -> None:
    assert chosen("far", other) == Choice(HEAD, why)
