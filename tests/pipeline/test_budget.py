"""How many prompt rows a step takes: by the target time between two tokens, and by what overlaps best on the stages."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_chain import TimedChain, request, scheduler

from pipeline.budget import LEAST_CHUNK, PromptBudget
from pipeline.flight import Flight
from pipeline.messages import Step
from pipeline.pacing import Pace
from pipeline.scheduler_config import SchedulerConfig
from pipeline.step_times import StepShape, StepTimes

TABLE = ((1, 4.5), (4, 6.0), (8, 13.0), (16, 24.0), (64, 62.0))
"""A small model on one core; about 0.8 ms a row of a prompt."""


def budget(stages: int, table: tuple[tuple[int, float], ...] | None = TABLE, **config: Any) -> PromptBudget:
    values = {"kv_tokens": 8192, "block": 16, "context_length": 4096, "stages": stages, "step_times": table}
    made = SchedulerConfig(**{**values, **config})
    return PromptBudget(made, StepTimes(table, made.link_ms, stages))


def flight(prompt: int, answers: int = 4, time: float = 0.0) -> Flight:
    return Flight([], True, StepShape(answers, prompt, prompt / 2), time)


# Chunks of prompts that have the chain to themselves


@given(st.integers(1, 2000), st.integers(1, 256), st.integers(1, 5), st.sampled_from([None, TABLE]))
def test_a_chunk_is_some_of_the_prompts(backlog: int, most: int, stages: int, table: Any) -> None:
    rows = budget(stages, table, token_budget=most).rows(0, backlog, 0, None, (), 0.0)
    assert 1 <= rows <= min(backlog, most)


def test_chunks_overlap_on_stages_and_only_there() -> None:
    table = ((1, 5.3), (64, 24.2))
    chunks = [budget(stages, table).rows(0, 200, 0, None, (), 0.0) for stages in (1, 2, 4)]
    assert chunks[0] == 200
    assert 40 <= chunks[1] <= 80
    assert chunks[2] < chunks[1]


def test_chunks_stay_equal_until_the_last() -> None:
    chosen = budget(2)
    first = chosen.rows(0, 900, 0, None, (), 0.0)
    assert chosen.rows(0, 900 - first, first, None, [flight(first)], 0.1) == first
    assert chosen.rows(0, 300, 600, None, [flight(first)], 0.1) == first
    assert chosen.rows(0, 10, 890, None, [flight(first)], 0.1) == 10
    assert chosen.rows(0, 100, 0, None, (), 0.2) < first  # another prompt, later


def test_a_long_way_round_is_filled_with_more_chunks() -> None:
    assert budget(2).in_flight([flight(80)]) == 2
    assert budget(2, link_ms=1.0).in_flight([flight(80)]) == 2
    assert budget(2, link_ms=200.0).in_flight([flight(80)]) > 3


def test_steps_are_bounded_for_those_who_may_come() -> None:
    slow = ((1, 30.0), (64, 30.0 + 63 * 8))
    rows = {stages: budget(stages, slow).rows(0, 4000, 0, None, (), 0.0) for stages in (1, 2)}
    assert 60 <= rows[1] == rows[2] <= 75  # four times the target
    slower = ((1, 300.0), (64, 300.0 + 63 * 20))
    assert budget(1, slower).rows(0, 4000, 0, None, (), 0.0) == 135  # or ten steps of one answer
    assert budget(1, slow, target_tbt_ms=None).rows(0, 4000, 0, None, (), 0.0) == 512


# Beside answers


def test_without_a_target_only_the_budget_bounds_a_step() -> None:
    chosen = budget(2, target_tbt_ms=None, token_budget=1024)
    assert chosen.rows(4, 900, 0, Pace(2, 4), (), 0.0) == 900
    assert chosen.rows(4, 2000, 0, Pace(2, 4), (), 0.0) == 1020


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 16), st.floats(20, 500), st.floats(0, 30))
def test_equal_steps_keep_the_target(stages: int, groups: int, rows: int, target: float, link_ms: float) -> None:
    chosen = budget(stages, target_tbt_ms=target, link_ms=link_ms)
    times = StepTimes(TABLE, link_ms, stages)
    prompt = chosen.bound(Pace(groups, rows))
    step = times.step_ms(rows, prompt, 0.0)
    if prompt > LEAST_CHUNK:
        assert max(max(groups, stages) * step, stages * step + link_ms) <= target
    else:
        assert prompt == LEAST_CHUNK


def test_a_small_chunk_goes_even_where_answers_alone_take_longer() -> None:
    assert budget(2, target_tbt_ms=1.0).rows(4, 900, 0, Pace(2, 4), (), 0.0) == LEAST_CHUNK
    assert budget(2, target_tbt_ms=1.0).rows(4, 3, 0, Pace(2, 4), (), 0.0) == 3
    assert budget(2, target_tbt_ms=1.0, token_budget=10).rows(4, 900, 0, Pace(2, 4), (), 0.0) == 6


def test_what_a_step_waits_for_at_the_first_stage_counts() -> None:
    before = [flight(60, time=0.0)]  # 52 ms of it
    chosen = budget(2)
    rows = [chosen.rows(4, 9000, 0, Pace(2, 4), before, now) for now in (0.0, 0.02, 0.06)]
    assert rows[0] < rows[1] < rows[2]


def test_steps_grow_to_their_size_one_by_one() -> None:
    chosen, now, sizes = budget(2), 0.0, []
    before: list[Flight] = []
    for _ in range(6):
        rows = chosen.rows(4, 9000, 0, Pace(2, 4), before, now)
        sizes.append(rows)
        before = [flight(rows, time=now)]
        now += 0.08
    assert sizes == sorted(sizes)
    assert sizes[0] < 0.8 * sizes[-1] <= 0.8 * chosen.bound(Pace(2, 4))


def test_where_steps_are_not_shared_one_of_answers_goes_between() -> None:
    shared, apart = (budget(2, mixed=mixed).bound(Pace(2, 8)) for mixed in (True, False))
    assert LEAST_CHUNK < apart < shared


# In a chain that takes other times than it was told


class Modelled(TimedChain):
    """Prompt rows that cost more the more is before them, and steps that vary."""

    pick = random.Random(7)
    vary = 0.03

    def stage_ms(self, step: Step) -> float:
        if not step.rows:
            return 0.0
        answers = sum(rows.count == 1 for rows in step.rows)
        rows = sum(r.count * (0.7 + 0.35 * (r.past + r.count / 2) / 900) for r in step.rows if r.count > 1)
        return (4.0 + 0.5 * answers + rows) * self.pick.uniform(1 - self.vary, 1 + self.vary)


def run(stages: int, target: float | None, *, users: int = 8, prompt: int = 500) -> tuple[list[float], float]:
    """The times between tokens of users while a long prompt is worked on, and how long that took."""
    made = scheduler(
        kv_tokens=32768,
        block=32,
        context_length=4096,
        stages=stages,
        token_budget=1024,
        runs_ahead=True,
        step_times=TABLE,
        target_tbt_ms=target,
    )
    chain = Modelled(made, float, link_ms=0.6)
    for i in range(users):
        chain.arrive(3.1 * i, request(f"u{i}", [i, 1, 2], 160))
    for at, name in ((300.0, "earlier"), (1500.0, "long")):
        chain.arrive(at, request(name, [int(at) % 97, *range(prompt)], 2))
    chain.run()
    end = chain.tokens_at["long"][0]
    assert all(end < chain.tokens_at[f"u{i}"][-1] for i in range(users))
    pauses = [b - a for i in range(users) for a, b in pairwise(chain.tokens_at[f"u{i}"]) if b >= 1500.0 and a <= end]
    return pauses, end - 1500.0


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("target", [80.0, 150.0, 400.0])
def test_a_long_prompt_among_answers_keeps_the_target(stages: int, target: float) -> None:
    pauses, _ = run(stages, target)
    assert max(pauses) <= target


@pytest.mark.parametrize("users", [1, 3])
def test_so_it_does_among_few(users: int) -> None:
    pauses, _ = run(2, 150.0, users=users)
    assert max(pauses) <= 150.0


def test_and_its_first_token_comes_sooner_than_in_one_step() -> None:
    (pauses, soon), (whole, late) = (run(2, target, prompt=900) for target in (150.0, None))
    assert max(whole) > 1000 > 6 * max(pauses)
    assert late / soon >= 1.6
