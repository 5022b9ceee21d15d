"""What is known of how long steps take: what was measured before, and what is learnt."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import StageTiming
from pipeline.step_times import StepShape, StepTimes

TABLE = ((1, 10.0), (4, 13.0), (8, 40.0), (16, 60.0))


def see(
    times: StepTimes,
    shape: StepShape,
    *stages: float,
    queued: float = 0.0,
    link_ms: float = 0.0,
    rows: int = 0,
    change: float = 0.0,
) -> None:
    """A step that has taken so many milliseconds on each stage, and in the queue of the first."""
    timings = [
        StageTiming(0.0, 1e3 * ms, 0.0, 1e3 * queued * (i == 0), rows, 1e3 * change) for i, ms in enumerate(stages)
    ]
    times.observe(shape, timings, sum(stages) + queued + link_ms)


def see_answers(times: StepTimes, rows: int, ms: Iterable[float]) -> None:
    for one in ms:
        see(times, StepShape(rows, 0, 0.0), one)


def told(times: StepTimes, *rows: int) -> list[float]:
    return [round(times.answers_ms(count), 6) for count in rows]


# Answer rows


def test_a_table_is_linear_between_and_beyond_the_measured_and_never_falls() -> None:
    assert told(StepTimes([(8, 40.0), (2, 10.0), (4, 20.0)]), 1, 2, 3, 6, 8, 10) == [10.0, 10.0, 15.0, 30.0, 40.0, 50.0]
    assert told(StepTimes([(4, 7.0)]), 1, 100) == [7.0, 7.0]
    assert told(StepTimes([(1, 8.0), (2, 20.0), (4, 9.0)]), 2) == [9.0]


def test_nothing_is_known_without_a_table_until_steps_have_been_seen() -> None:
    times = StepTimes()
    assert (times.table, times.answers_ms(4), times.prompt_row_ms(0.0)) == ((), 0.0, None)
    see_answers(times, 4, [12.0] * 31)
    assert not times.version
    see_answers(times, 4, [12.0])
    assert dict(times.table) == {4: 12.0}


def test_what_is_seen_of_one_number_of_rows_says_nothing_of_another() -> None:
    times = StepTimes(TABLE)
    see_answers(times, 4, [19.5] * 32)
    assert told(times, 1, 4, 8, 16) == [10.0, 19.5, 40.0, 60.0]


def test_a_step_that_a_stage_filled_up_tells_of_the_rows_it_computed() -> None:
    times = StepTimes(TABLE)
    for _ in range(32):
        see(times, StepShape(4, 0, 0.0), 50.0, rows=8)
    assert told(times, 4, 8) == [13.0, 50.0]


def test_a_change_of_shape_is_known_apart_and_only_larger_steps_pay_it() -> None:
    times = StepTimes(TABLE)
    assert times.change_ms(8) == 0.0
    for _ in range(16):
        for rows, ms, change in ((4, 13.0, 0.0), (8, 46.0, 6.0)):
            see(times, StepShape(rows, 0, 0.0), ms, rows=rows, change=change)
    assert told(times, 4, 8) == [13.0, 40.0]
    assert (times.change_ms(8), times.change_ms(9)) == (0.0, 6.0)


def test_a_few_steps_do_not_outweigh_the_table() -> None:
    times = StepTimes(TABLE)
    see_answers(times, 4, [39.0] * 4 + [13.0])
    see_answers(times, 1, [10.0] * 27)
    assert told(times, 4) == [13.0]


def test_a_wrong_point_of_the_table_is_left_once_it_is_seen() -> None:
    """It made four groups of two look better than two of four, and must not drag the others' times along."""
    times = StepTimes([(1, 10.0), (2, 10.0), (4, 30.0)])
    see_answers(times, 2, [20.0] * 64)
    see_answers(times, 4, [26.0] * 64)
    assert told(times, 2, 4) == [20.0, 26.0]


def test_a_number_of_rows_that_is_slower_than_the_table_says_is_learnt() -> None:
    times = StepTimes(TABLE)
    for _ in range(8):
        see_answers(times, 4, [13.0] * 20)
        see_answers(times, 6, [39.0] * 12)
    assert told(times, 1, 4, 6, 16) == [10.0, 13.0, 39.0, 60.0]


def test_sizes_that_were_not_seen_for_long_are_not_thought_ever_slower() -> None:
    """The table says that two rows take less than one: made monotone, it is below what steps of one row take."""
    pick = random.Random(0)
    times = StepTimes([(1, 2.0), (2, 1.5), (8, 4.0)])
    for _ in range(200):
        for rows, ms in ((2, 1.5), (1, 2.0)):
            see_answers(times, rows, [ms * pick.choice((0.8, 1.0, 1.0, 2.5)) for _ in range(11 if rows == 2 else 21)])
    assert times.answers_ms(8) < 10.0


def test_a_slow_step_now_and_then_does_nothing() -> None:
    times = StepTimes(TABLE)
    see_answers(times, 4, [13.0] * 64)
    before = times.version, times.table
    for _ in range(20):
        see_answers(times, 4, [13.0] * 29 + [900.0] * 3)
        assert (times.version, times.table) == before
    see_answers(times, 16, [500.0])  # the only one of its size
    see_answers(times, 4, [13.0] * 31)
    assert (times.version, times.table) == before


@given(st.randoms(use_true_random=False))
def test_noise_is_no_reason_to_decide_anew(pick: random.Random) -> None:
    times = StepTimes(TABLE)
    for _ in range(10):
        see_answers(times, 4, [13.0 * pick.uniform(0.96, 1.04) for _ in range(32)])
    assert (times.version, times.table) == (0, TABLE)


def test_steps_without_timings_tell_nothing() -> None:
    times = StepTimes(TABLE)
    for _ in range(64):
        times.observe(StepShape(4, 0, 0.0), (), 500.0)
        see(times, StepShape(4, 0, 0.0), 0.0, 0.0)
    assert (times.version, times.table, times.link_ms) == (0, TABLE, 0.0)


# The chain


def test_the_way_round_and_the_share_of_the_slowest_stage_are_learnt() -> None:
    times = StepTimes(TABLE, link_ms=1.0, stages=3)
    assert times.depth == 3
    for i in range(32):
        see(times, StepShape(4, 0, 0.0), 6.5, 13.0, 6.5, queued=3.0 * i, link_ms=25.0)
    assert times.link_ms == pytest.approx(25.0)
    assert times.depth == pytest.approx(2.0)
    assert told(times, 4) == [13.0]


# Prompt rows


def test_a_prompt_row_costs_what_the_last_rows_of_the_table_did_until_steps_say_otherwise() -> None:
    times = StepTimes(TABLE)
    assert times.prompt_row_ms(0.0) == times.prompt_row_ms(500.0) == 2.5
    assert times.step_ms(4, 10, 0.0) == 13.0 + 25.0
    for _ in range(2):
        see(times, StepShape(4, 100, 50.0), 13.0 + 100.0)
    assert times.prompt_row_ms(0.0) == 2.5  # two may both be slow
    see(times, StepShape(4, 100, 50.0), 13.0 + 100.0)
    assert times.prompt_row_ms(0.0) == pytest.approx(1.0)
    assert times.step_ms(4, 50, 0.0) == pytest.approx(63.0)


def test_what_the_tokens_before_a_prompt_row_cost_is_learnt_from_one_long_prompt() -> None:
    times = StepTimes(TABLE)
    for past in range(0, 900, 75):
        see(times, StepShape(4, 75, past + 37.5), 13.0 + 75 * (0.7 + 0.3 * (past + 37.5) / 900))
    for context in (0.0, 450.0, 1800.0):
        assert times.prompt_row_ms(context) == pytest.approx(0.7 + 0.3 * context / 900, rel=0.01)
    for _ in range(20):  # short ones say nothing of it, and do not make it forgotten
        see(times, StepShape(4, 40, 20.0), 13.0 + 40 * (0.7 + 0.3 * 20 / 900))
    assert times.prompt_row_ms(1800.0) == pytest.approx(1.3, rel=0.01)


def test_a_slow_chunk_does_nothing() -> None:
    times = StepTimes(TABLE)
    rows = [0.7 + 0.3 * past / 900 for past in range(0, 900, 75)]
    rows[3] = rows[9] = 40.0
    for past, ms in zip(range(0, 900, 75), rows, strict=True):
        see(times, StepShape(4, 75, float(past)), 13.0 + 75 * ms)
    assert times.prompt_row_ms(900.0) == pytest.approx(1.0, rel=0.05)


def test_a_prompt_row_is_never_thought_to_cost_next_to_nothing() -> None:
    times = StepTimes(TABLE)
    for _ in range(8):  # the answers in it take less than they did; who believed the table would add rows without end
        see(times, StepShape(8, 12, 6.0), 20.0)
    assert times.prompt_row_ms(0.0) == pytest.approx(0.25 * 20.0 / 20)
    flat = StepTimes([(1, 10.0), (64, 10.0)])
    assert 0 < (flat.prompt_row_ms(0.0) or 0.0) < 0.01


def test_what_is_seen_of_fewer_rows_that_take_longer_does_not_make_the_level_rise_without_end() -> None:
    times = StepTimes(TABLE)
    versions = []
    for _ in range(60):
        see_answers(times, 6, [50.0] * 20)
        see_answers(times, 8, [40.0] * 12)
        versions.append(times.version)
    assert versions[-1] == versions[9]
    assert max(ms for _, ms in times.table) < 120.0


def test_steps_with_few_prompt_rows_say_nothing_of_either() -> None:
    times = StepTimes(TABLE)
    for _ in range(64):
        see(times, StepShape(4, 3, 10.0), 99.0)
    assert (times.version, times.table, times.prompt_row_ms(0.0)) == (0, TABLE, 2.5)


@given(st.integers(0, 64), st.integers(0, 500), st.floats(0, 4000))
def test_more_rows_or_more_tokens_before_them_never_take_less(answers: int, prompt: int, context: float) -> None:
    times = StepTimes(TABLE)
    for past in range(0, 900, 75):
        see(times, StepShape(4, 75, float(past)), 60.0 + past / 50)
    least = times.step_ms(answers, prompt, context)
    assert least <= times.step_ms(answers + 1, prompt, context) + 1e-9
    assert least <= times.step_ms(answers, prompt + 1, context) + 1e-9
    assert least <= times.step_ms(answers, prompt, context + 100) + 1e-9
