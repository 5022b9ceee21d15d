"""How long a node that has failed is left out."""

from __future__ import annotations

from math import inf

import pytest
from scripted_head import record as node_record

from agent.fleet.head.node_record import NodeRecord, Setback


@pytest.fixture
def record() -> NodeRecord:
    return node_record("d" * 40)


def test_the_pause_grows_with_each_failure_up_to_ten_minutes(record: NodeRecord) -> None:
    pauses = [record.fail("it broke", final=False, now=100.0).pause for _ in range(2000)]
    assert pauses[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert set(pauses[6:]) == {600.0}


def test_after_a_success_it_begins_anew(record: NodeRecord) -> None:
    for _ in range(3):
        record.fail("it broke", final=False, now=0.0)
    record.failures = 0
    assert record.fail("it broke", final=False, now=0.0).pause == 30.0


def test_what_stays_as_it_is_is_not_tried_again(record: NodeRecord) -> None:
    setback = record.fail("it has no GPU", final=True, now=5.0)
    assert setback.left(1e9) == inf
    assert setback.told(6.0) == "it has no GPU (not tried again until it joins again)"
    assert record.describe()["problem"] == setback.told(6.0)


@pytest.mark.parametrize(
    ("now", "words"),
    [(100.0, "in 10 min"), (610.0, "in 2 min"), (611.0, "in 89 s"), (699.0, "in 1 s"), (699.5, "in a moment")],
)
def test_when_it_is_tried_again_is_said(now: float, words: str) -> None:
    assert Setback("it broke", 600.0, 100.0).told(now) == f"it broke (tried again {words})"


def test_a_moment_that_has_passed_is_no_negative_time() -> None:
    setback = Setback("it broke", 30.0, 100.0)
    assert setback.left(131.0) < 0 and setback.told(131.0).endswith("in a moment)")
