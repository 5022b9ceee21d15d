from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.bench import simulation
from agent.bench.recorded_steps import RecordedStep, RecordingScheduler, leg_ms, stage_models
from agent.bench.sides import Effort
from pipeline.layout import RunOptions
from pipeline.messages import NOT_YET, Request, Sampling, StageTiming, StepResult, Token
from pipeline.scheduler_config import SchedulerConfig
from shards.progress import silent


def timing(compute: float, wait: float = 0.0, queued: float = 0.0, send: float = 0.0) -> StageTiming:
    """Of milliseconds."""
    return StageTiming(wait=1e3 * wait, compute=1e3 * compute, send=1e3 * send, queued=1e3 * queued)


def recorded(rows: int, round_ms: float, *timings: StageTiming, is_ahead: bool = False) -> RecordedStep:
    return RecordedStep(rows, is_ahead, round_ms, timings)


def test_a_stage_is_modelled_by_the_means_of_its_steps() -> None:
    steps = [recorded(1, 9, timing(4)), recorded(1, 9, timing(6)), recorded(4, 12, timing(8))]
    (model,) = stage_models(steps)
    assert model.step_ms == ((1, 5), (4, 8), (8, 16))  # in proportion beyond what was seen
    assert model.jitter == 0  # two steps do not tell
    (model,) = stage_models([recorded(2, 9, timing(ms)) for ms in (9, 11) * 4])
    assert model.jitter == pytest.approx(0.1)


def test_handing_on_and_taking_the_next_count_besides_but_waiting_for_a_token_does_not() -> None:
    busy = timing(4, wait=0.25, queued=3, send=0.5)  # it came while the step before was computed
    idle = timing(4, wait=7, queued=0.25, send=0.5)
    ahead = timing(4, wait=7, queued=9, send=0.5)
    first, second = stage_models(
        [recorded(1, 20, busy, busy), recorded(1, 20, idle, idle), recorded(1, 20, ahead, busy, is_ahead=True)]
    )
    assert (first.call_ms, second.call_ms) == (0.75, 0.75)


def test_what_is_left_of_a_round_is_spent_on_its_legs() -> None:
    steps = [recorded(1, 13.5, timing(4, send=0.5), timing(5, queued=1))] * 3
    assert leg_ms(steps, stage_models(steps)) == pytest.approx(1)


def test_the_scheduler_notes_steps_with_rows_and_what_they_took() -> None:
    config = SchedulerConfig(kv_tokens=64, block=4, context_length=64, runs_ahead=True)
    scheduler = RecordingScheduler(config)
    scheduler.add(Request("a", (1, 2, 3), Sampling(), 2), 0.0)
    prompt, ahead = scheduler.next_step(1.0), scheduler.next_step(1.0)
    assert prompt is not None
    assert ahead is not None
    assert ahead.tokens.tolist() == [NOT_YET]
    for number, step in enumerate((prompt, ahead)):
        token = Token(step.rows[0].sequence, 3 + number, 9)
        scheduler.complete(StepResult(step.number, (token,), (timing(2),)), 1.25 + number)
    freeing = scheduler.next_step(3.0)
    assert freeing is None or not freeing.rows
    assert [(step.rows, step.is_ahead, step.round_ms) for step in scheduler.take()] == [
        (3, False, 250),
        (1, True, 1250),
    ]
    assert scheduler.take() == []


def test_two_stages_are_measured_and_simulated(tiny_chat_package: Path) -> None:
    plain = RunOptions(stages=2, mode="exact", prefix_cache=False)  # neither tuned nor pinned: nothing is concluded
    report = simulation.run(tiny_chat_package, Effort(users=(2,), rounds=1, new_tokens=8), silent, plain)
    assert [row["users"] for row in report.results] == ["2", simulation.POISSON]
    assert all(value > 0 for row in report.results for value in list(row.values())[1:])
    assert len(report.targets) == 2
    assert len(report.runs[0]["model"]["stages"]) == 2
    json.dumps(report.as_json())
