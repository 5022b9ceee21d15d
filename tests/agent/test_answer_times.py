from __future__ import annotations

import pytest

from agent.answer_times import AnswerTimes
from pipeline.averages import StepLog
from pipeline.messages import StageTiming


def test_the_first_token_and_the_rate_after_it() -> None:
    times = AnswerTimes(100.0)
    assert not times.add(100.2, 0)
    assert times.add(100.5, 1)
    assert times.tokens_per_second is None
    for number in range(1, 11):
        assert not times.add(100.5 + number / 10, 1)
    times.end(103.0, None)  # later than the last token
    assert times.first_token == 0.5
    assert times.tokens_per_second == pytest.approx(10)
    assert times.since_begin(103.0) == 3.0


def test_tokens_that_come_in_one_lot_with_the_first_say_nothing_of_the_rate() -> None:
    times = AnswerTimes(0.0)
    times.add(1.0, 5)
    assert times.tokens_per_second is None
    times.add(2.0, 3)
    assert times.tokens_per_second == 3


def test_an_answer_without_a_token() -> None:
    times = AnswerTimes(0.0)
    times.end(0.25, None)
    assert (times.first_token, times.tokens_per_second, times.steps) == (0.25, None, None)


def test_only_steps_since_the_first_token_count() -> None:
    log = StepLog(4)
    for number in range(10):
        log.add_step(float(number), 0.5, (StageTiming(0.0, 1e3 * number, 0.0),))
    times = AnswerTimes(7.0)
    times.add(7.5, 1)
    times.add(9.0, 1)
    times.end(9.2, log.last(9.1))
    assert times.steps is not None
    assert times.steps.chain == 4
    assert [stage.compute for stage in times.steps.stages] == [8500.0]
