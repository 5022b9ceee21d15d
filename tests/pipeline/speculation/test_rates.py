"""What guesses bring, where it can be worked out on paper."""

from __future__ import annotations

import pytest

from pipeline.messages import StageTiming
from pipeline.pacing import Pace
from pipeline.speculation.rates import Rates
from pipeline.step_times import StepShape, StepTimes

TABLE = ((1, 10.0), (2, 10.0), (3, 10.0), (4, 40.0))
"""Three rows are as good as one."""


def rates(link_ms: float = 100.0, detour_ms: float | None = None) -> Rates:
    """Two stages."""
    return Rates(StepTimes(TABLE, link_ms, 2, detour_ms))


def draft_ms(count: int) -> float:
    return 4.0 * count


ALONE, FOUR = Pace(1, 1), Pace(4, 1)


def test_a_round_is_the_way_round_or_the_work_of_all() -> None:
    assert rates().round_ms(ALONE, 1) == 2 * 10 + 100
    assert rates(link_ms=0).round_ms(FOUR, 1) == 4 * 10


def test_running_ahead_saves_the_way_by_the_head() -> None:
    assert rates(link_ms=90).plain(ALONE, 1) == pytest.approx(
        1 / (20 + 90 - 30.5)
    )  # a link's part of three, and the head's turn
    assert rates(link_ms=90, detour_ms=0).plain(ALONE, 1) == pytest.approx(1 / (20 + 90 - 0.5))
    assert rates(link_ms=0, detour_ms=50).plain(FOUR, 4) == pytest.approx(4 / 40)  # nobody is idle


def test_a_longer_step_among_others_makes_all_stages_wait() -> None:
    two = Pace(2, 1)
    assert rates(link_ms=0).verified(two, 1, 1) == pytest.approx(2 / 20)
    assert rates(link_ms=0).verified(two, 3, 2.5) == pytest.approx(3.5 / 20)
    assert rates(link_ms=0).verified(two, 4, 3) == pytest.approx(4 / 80)  # not 4 / (40 + 10)
    assert rates(link_ms=0).verified(two, 4, 3, [4]) == pytest.approx(4 / 80)  # they wait for another one anyway
    assert rates(link_ms=0).verified(Pace(3, 1), 4, 3, [4, 1, 1]) == pytest.approx(5 / 90)


def test_rows_that_call_for_another_shape_cost_its_change() -> None:
    times = StepTimes(TABLE, 0.0, 2)
    times.observe(StepShape(1, 0, 0.0), [StageTiming(0.0, 17e3, 0.0, 0.0, 1, 7e3)] * 2, 34.0)
    changing = Rates(times)
    two = Pace(2, 1)
    assert changing.verified(two, 1, 1) == pytest.approx(2 / 20)
    assert changing.verified(two, 3, 2) == pytest.approx(3 / (2 * 17))
    assert changing.verified(ALONE, 3, 2) == pytest.approx(2 / (2 * 11.75))  # one step in four


def test_who_waits_pays_for_all_guesses_and_loses_nothing_else() -> None:
    guesses, rate = rates().waiting(1, (0.5, 0.25, 0.125), draft_ms)
    assert guesses == 2  # a third would make the step long
    assert rate == pytest.approx((1 + 0.75) / (120 + 8))


def test_who_streams_pays_for_what_comes_true() -> None:
    """The first guess is there after 20 ms, each further one 12 later; a step takes 10."""
    rate = rates().streaming(1, (0.5, 0.25), 1, lambda count: 8 + 12.0 * count)
    assert rate == pytest.approx((1 + 0.75) / (120 + 0.5 * 20 + 0.25 * 12))
    together = rates().streaming(1, (0.5, 0.25), 2, lambda count: 8 + 12.0 * count)
    assert together == pytest.approx((1 + 0.75) / (120 + 0.5 * 32))


def test_where_all_stages_are_at_work_guesses_are_in_the_way() -> None:
    rate = rates(link_ms=0).streaming(4, (0.5, 0.25), 1, draft_ms)
    assert rate == pytest.approx(4 * 1.75 / (4 * 30)) and rate < rates(link_ms=0).plain(FOUR, 4)


def test_what_follows_must_win_more_than_it_delays() -> None:
    near, far = rates(link_ms=0), rates()
    assert near.is_worth_following(0.34, 10.0) and not near.is_worth_following(0.33, 10.0)
    assert far.is_worth_following(0.05, 10.0) and not far.is_worth_following(0.04, 10.0)


def test_the_slowest_stage_keeps_up_with_pieces() -> None:
    assert rates().piece(4.0, 8) == 3  # 12 ms to make, 10 to run
    assert rates().piece(0.1, 8) == 8
    assert rates().piece(50.0, 8) == 1
