from __future__ import annotations

import pytest

from pipeline.simulation.measures import Measures, StageUse, stage_use, steps_by_rows
from pipeline.simulation.outcome import Outcome, RequestTimes, StepTimes


def request(arrived: float, *tokens: float) -> RequestTimes:
    return RequestTimes("users", 1, len(tokens), arrived, 0, list(tokens), tokens[-1])


def test_rates_and_waits() -> None:
    measures = Measures.of([request(0, 100, 200, 300, 400), request(100, 250, 350, 450, 550, 1000)])
    assert (measures.requests, measures.tokens, measures.seconds) == (2, 9, 1.0)
    assert measures.phase == 9
    assert measures.decode == pytest.approx(3 / 0.150)  # 300, 350 and 400, from 250 on
    assert (measures.first_p50_ms, measures.first_p99_ms) == (125, pytest.approx(149.5))
    assert (measures.between_p50_ms, measures.between_p95_ms) == (100, pytest.approx(100 + 350 * 0.7))


def test_there_is_no_decode_rate_where_never_all_decode_and_no_gap_in_one_token() -> None:
    apart = Measures.of([request(0, 10, 20), request(50, 60, 70)])
    assert apart.decode is None
    single = Measures.of([request(0, 10)])
    assert (single.between_p50_ms, single.decode, single.first_p50_ms, single.phase) == (None, None, 10, 100)


def test_a_bubble_is_idle_time_in_which_another_stage_works() -> None:
    busy = [[(0.0, 10.0), (20.0, 30.0)], [(10.0, 20.0)], [(5.0, 15.0)]]
    outcome = Outcome({"a": request(0, 40)}, [], busy, 64, 8)
    assert stage_use(outcome) == [StageUse(0.5, 0.25), StageUse(0.25, 0.5), StageUse(0.25, 0.5)]


def test_steps_are_counted_by_rows() -> None:
    steps = [StepTimes(rows, 0.0, 1.0) for rows in (4, 1, 0, 4)]
    assert steps_by_rows(Outcome({}, steps, [], 64, 8)) == {1: 1, 4: 2}
