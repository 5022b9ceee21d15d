from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bench.arrivals import ClosedLoop, Poisson, Traffic, from_json, to_json


@given(st.integers(1, 9), st.integers(1, 30), st.randoms(use_true_random=False))
def test_users_of_a_closed_loop_have_one_question_each_and_ask_as_many_as_are_wanted(
    users: int, questions: int, random: Random
) -> None:
    arrivals = ClosedLoop(users, questions).begin()
    assert not arrivals.is_over and arrivals.next is None
    open_ = asked = 0
    while open_ or not arrivals.is_over:
        due = arrivals.take(float(asked))
        assert due == [float(asked)] * len(due)
        open_ += len(due)
        asked += len(due)
        assert open_ <= users
        for _ in range(random.randint(1, open_)):
            arrivals.answered()
            open_ -= 1
    assert asked == max(users, questions)
    assert arrivals.take(1e6) == []


def test_a_closed_loop_can_end_by_the_clock_and_each_user_has_asked_once() -> None:
    arrivals = ClosedLoop(2, seconds=5.0).begin()
    assert arrivals.take(0.0) == [0.0, 0.0]
    arrivals.answered()
    assert arrivals.take(4.9) == [4.9]
    assert not arrivals.is_over
    arrivals.answered()
    assert arrivals.take(5.0) == []
    assert arrivals.is_over
    assert ClosedLoop(3, seconds=1.0).begin().take(2.0) == [2.0] * 3


def test_a_closed_loop_has_one_end() -> None:
    with pytest.raises(ValueError, match="questions or seconds"):
        ClosedLoop(1)
    with pytest.raises(ValueError, match="questions or seconds"):
        ClosedLoop(1, 1, 1.0)


def test_poisson_arrivals_are_taken_when_they_are_due_and_are_the_same_for_a_seed() -> None:
    all_at_once = Poisson(rate=20.0, questions=2000, seed=7).begin().take(1e9)
    assert all_at_once == sorted(all_at_once) and len(all_at_once) == 2000
    assert 90.0 < all_at_once[-1] < 110.0  # 2000 questions at 20 a second
    again, other = Poisson(20.0, 2000, 7).begin(), Poisson(20.0, 2000, 8).begin()
    taken: list[float] = []
    while again.next is not None:
        assert again.take(again.next - 1e-6) == []
        taken += again.take(again.next)
        again.answered()
    assert again.is_over and taken == all_at_once
    assert other.take(1e9) != all_at_once


@pytest.mark.parametrize("traffic", [ClosedLoop(3, 4), ClosedLoop(3, seconds=2.0), Poisson(0.5, 6, 1)])
def test_traffic_travels_as_json(traffic: Traffic) -> None:
    assert from_json(json.loads(json.dumps(to_json(traffic)))) == traffic
