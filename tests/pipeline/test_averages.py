from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.averages import StepLog
from pipeline.messages import StageTiming


def timing(compute: float = 0.0, wait: float = 0.0, queued: float = 0.0) -> StageTiming:
    return StageTiming(wait=wait, compute=compute, send=1.0, queued=queued)


def test_before_the_first_step_there_is_nothing() -> None:
    last = StepLog(3).last(10.0)
    assert (last.chain, last.stages, last.use) == (3, (), ())
    assert (last.traversal, last.wire, last.interval, last.head, last.listeners) == (0, 0, 0, 0, 0)


def test_medians_of_steps_and_turns() -> None:
    log = StepLog(0)
    for number, compute in enumerate((1000.0, 3000.0, 90_000.0)):
        log.add_step(1.0 + number / 10, 0.1, (timing(compute, wait=5.0), timing(500.0, queued=200.0)))
        log.add_turn(2, 40e-6, 10e-6)
    last = log.last(1.3)
    assert [stage.compute for stage in last.stages] == [3000.0, 500.0]
    assert (last.stages[0].wait, last.stages[1].queued, last.stages[0].send) == (5.0, 200.0, 1.0)
    assert last.traversal == pytest.approx(100_000)
    assert last.wire == pytest.approx(100_000 - 3000 - 700)
    assert last.interval == pytest.approx(100_000)
    assert (last.head, last.listeners) == (pytest.approx(20), pytest.approx(5))


def test_what_is_written_down_does_not_change() -> None:
    log = StepLog(0)
    log.add_step(1.0, 0.1, (timing(10.0),))
    last = log.last(2.0)
    log.add_step(2.0, 0.1, (timing(90.0),))
    assert last.stages[0].compute == 10.0


def test_the_steps_of_a_stretch_of_time() -> None:
    log = StepLog(0)
    for number in range(10):
        log.add_step(float(number), 0.1, (timing(float(number)),))
    last = log.last(9.5)
    assert [stages[0].compute for _, _, stages in last.over(2.0).steps] == [8.0, 9.0]
    assert last.over(0.1).steps == last.steps


def test_use_is_the_part_of_the_time_in_which_a_stage_computed() -> None:
    log = StepLog(0)
    for number in range(1, 31):  # a step every 0.1 s, of which one stage computes 50 ms and the other 25
        log.add_step(number / 10, 0.1, (timing(50e3), timing(25e3)))
    assert log.last(3.0).use == (pytest.approx(0.5), pytest.approx(0.25))
    assert log.last(4.5).use[0] == pytest.approx(0.25, abs=0.02)
    assert log.last(6.1).use == (0.0, 0.0)


def test_use_of_quick_steps_is_that_of_the_time_that_is_known() -> None:
    log = StepLog(0)
    for number in range(1000):
        log.add_step(number / 1000, 0.001, (timing(900.0),))
    assert log.last(0.999).use == (pytest.approx(0.9),)


def test_a_step_longer_than_the_stretch_fills_it() -> None:
    log = StepLog(0)
    log.add_step(100.0, 30.0, (timing(30e6), timing(1e6)))
    assert log.last(100.0).use == (pytest.approx(1.0), pytest.approx(1 / 3))


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e8)), max_size=80), st.floats(0, 10))
def test_use_is_a_part(steps: list[tuple[float, float]], later: float) -> None:
    log, now = StepLog(0), 0.0
    for pause, compute in steps:
        now += pause
        log.add_step(now, compute / 1e6, (timing(compute),))
    assert all(0.0 <= use <= 1.0 for use in log.last(now + later).use)
