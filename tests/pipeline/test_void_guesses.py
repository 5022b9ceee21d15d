"""Rows of wrong guesses, where word of them comes late."""

from __future__ import annotations

import pytest
from planted_drafter import PlantedDrafter
from simulated_chain import Answers, Chain, reference, request

from pipeline.messages import Finished, Request, StageTiming, StepResult
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.config import SpeculationConfig


def speculating(drafter: PlantedDrafter, *requests: Request, **config: object) -> Scheduler:
    settings = {"kv_tokens": 256, "block": 4, "context_length": 128, **config}
    made = Scheduler(SchedulerConfig(**settings), drafter)  # type: ignore[arg-type]
    for wanted in requests:
        drafter.requests[wanted.id] = wanted
        made.add(wanted, 0.0)
    return made


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_answers_are_right_though_no_stage_hears_what_is_void(stages: int) -> None:
    for seed in range(60):
        drafter = PlantedDrafter(seed, 0.6, stages)
        asked = [request(f"r{i}", (seed, i), 30) for i in range(1 + seed % 3)]
        scheduler = speculating(
            drafter, *asked, stages=stages, link_ms=20.0, step_times=((1, 10.0), (4, 40.0)), runs_ahead=True
        )
        chain, answers = Chain.of(scheduler), Answers()
        while not scheduler.is_idle:
            while step := scheduler.next_step(0.0):
                chain.send(step)
            assert chain.sent
            answers.take(scheduler.complete(chain.deliver(), 0.0))
        for wanted in asked:
            assert isinstance(answers.ended[wanted.id], Finished), f"seed {seed}: {answers.ended[wanted.id]}"
            assert answers.of(wanted.id) == reference(wanted, stages)


def test_what_a_step_takes_is_not_learnt_from_one_whose_rows_were_void() -> None:
    drafter, asked = PlantedDrafter(0, 0.6, 1), request("a", (1,), 120)
    scheduler = speculating(
        drafter,
        asked,
        link_ms=200.0,
        step_times=((1, 10.0), (5, 50.0)),
        speculation=SpeculationConfig(draft_tokens=4),
    )
    chain, answers = Chain.of(scheduler), Answers()
    voids = 0
    while not scheduler.is_idle:
        while step := scheduler.next_step(0.0):
            chain.send(step)
        rows = sum(part.count for part in chain.sent[0].rows)
        result = chain.deliver()
        voids += not result.tokens
        compute = 10_000.0 * rows if result.tokens else 10.0
        timed = StepResult(result.number, result.tokens, (StageTiming(0.0, compute, 0.0),))
        answers.take(scheduler.complete(timed, 0.0))
    assert voids > 10 and answers.of("a") == reference(asked, 1)
    assert all(ms == pytest.approx(10.0 * rows) for rows, ms in scheduler.snapshot().step_times)
