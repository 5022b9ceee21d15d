"""Which prompts a step takes rows of: who goes first, who shares, what answers and prompts do to one another."""

from __future__ import annotations

from itertools import pairwise

import pytest
from simulated_chain import Driven, TimedChain, reference, request, scheduler

from pipeline.messages import Step
from pipeline.step_times import StepTimes

TABLE = ((1, 5.0), (64, 68.0))
"""A millisecond a prompt row."""


def timed(stages: int = 1, **config: object) -> TimedChain:
    values = {"kv_tokens": 8192, "context_length": 4096, "stages": stages, "step_times": TABLE, "runs_ahead": True}
    return TimedChain(scheduler(**{**values, **config}), StepTimes(TABLE).answers_ms, link_ms=0.5)


def chunks(step: Step) -> dict[int, int]:
    return {rows.sequence: rows.count for rows in step.rows}


# Who goes first


def test_a_short_prompt_passes_a_long_one_that_is_at_work() -> None:
    driven = Driven(request("long", range(60), 1), token_budget=16)
    driven.send()
    driven.deliver()
    driven.scheduler.add(request("short", range(70, 75), 1), 0.0)
    assert chunks(driven.send()) == {1: 5, 0: 11}
    driven.deliver()
    assert driven.answers.of("short")
    assert not driven.answers.of("long")


def test_one_whose_beginning_is_cached_is_as_short_as_what_is_left() -> None:
    driven = Driven(request("first", range(40), 1), token_budget=16)
    driven.finish()
    for name, prompt in (("long", range(60, 90)), ("longer", [*range(40), 50])):
        driven.scheduler.add(request(name, prompt, 1, client=name), 0.0)
    steps = []
    for _ in range(2):
        steps.append([(rows.past, rows.count) for rows in driven.send().rows])
        driven.deliver()
    assert steps == [[(0, 16)], [(40, 1), (16, 14)]]
    driven.finish()


def test_of_prompts_at_work_the_one_with_the_fewest_rows_left_goes_first() -> None:
    driven = Driven(request("a", range(40), 1, priority=1), request("b", range(50, 80), 1), token_budget=48)
    assert chunks(driven.send()) == {0: 40, 1: 8}
    driven.deliver()
    for name, prompt in (("c", range(100, 120)), ("d", range(200, 230))):
        driven.scheduler.add(request(name, prompt, 1), 0.0)
    assert chunks(driven.send()) == {2: 20, 1: 22, 3: 6}
    driven.finish()


def test_a_long_prompt_is_passed_only_by_those_that_come_while_its_work_is_more_than_its_wait() -> None:
    driven = Driven(request("long", range(60), 1), token_budget=8)
    driven.send()
    driven.deliver()
    for now, name in ((0.02, "soon"), (0.2, "late")):  # the long one's 52 rows are taken for 52 ms
        driven.scheduler.add(request(name, range(70, 86), 1), now)
        step = driven.scheduler.next_step(now)
        assert step is not None
        driven.chain.send(step)
        driven.deliver()
        assert (0 in chunks(step)) is (name == "late")
        while name == "soon" and "soon" not in driven.answers.ended:
            driven.send()
            driven.deliver()
    driven.finish()


def test_no_stream_of_short_prompts_starves_a_long_one() -> None:
    chain = timed(token_budget=16, max_sequences=4)
    chain.arrive(0.0, request("long", range(600), 1))
    for i in range(300):  # they alone are more than the chain can do
        chain.arrive(10.0 * i, request(f"short{i}", [i, *range(14)], 1))
    chain.run()
    assert chain.tokens_at["long"][0] < chain.tokens_at["short200"][0]


def test_a_level_of_priority_is_worth_as_much_as_in_the_queue() -> None:
    driven = Driven(request("long", range(60), 1, priority=1), token_budget=16)
    driven.send()
    driven.deliver()
    driven.scheduler.add(request("short", range(70, 75), 1), 0.0)
    assert chunks(driven.send()) == {0: 16}


# Sharing steps


def test_prompts_that_wait_together_share_steps() -> None:
    chain = timed(stages=2)
    requests = [request(f"r{i}", [i, *range(4 + i)], 1) for i in range(9)]
    for wanted in requests:
        chain.arrive(0.0, wanted)
    chain.run()
    steps = [chunks(step) for step in chain.chain.log if step.rows]
    assert 2 <= len(steps) < 9
    assert all(len(step) > 1 for step in steps)
    assert all(chain.answers.of(wanted.id) == reference(wanted, 2) for wanted in requests)


@pytest.mark.parametrize("stages", [1, 2])
def test_prompt_rows_and_answer_rows_keep_to_steps_of_their_own(stages: int) -> None:
    chain = timed(stages, mixed=False)
    for i in range(4):
        chain.arrive(0.0, request(f"r{i}", [i, 1, 2], 60))
    chain.arrive(100.0, request("long", range(600), 2))
    chain.run()
    kinds = [{rows.count > 1 for rows in step.rows} for step in chain.chain.log if step.rows]
    assert all(len(kind) == 1 for kind in kinds)
    long = [i for i, step in enumerate(chain.chain.log) if step.rows and step.rows[0].count > 3]
    assert len(long) > 3
    assert all(b - a == 2 for a, b in pairwise(long))  # in turns, while both have something to send
    assert chain.answers.of("r0") == reference(request("r0", [0, 1, 2], 60), stages)


# Who comes while others write


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_running_ahead_is_no_more_than_a_step_of_answers_in_the_way_of_a_prompt(stages: int) -> None:
    first = {}
    for runs_ahead in (False, True):
        chain = timed(stages, runs_ahead=runs_ahead)
        for i in range(6):
            chain.arrive(0.0, request(f"r{i}", [i], 300))
        for i in range(12):
            chain.arrive(400.0 + 277.0 * i, request(f"new{i}", [50 + i, *range(90)], 1))
        chain.run()
        first[runs_ahead] = [chain.tokens_at[f"new{i}"][0] - 400.0 - 277.0 * i for i in range(12)]
    answers = StepTimes(TABLE).answers_ms(6)
    assert sum(first[True]) / 12 <= sum(first[False]) / 12 + answers


def test_one_step_more_than_there_are_groups_is_in_flight_and_none_while_prompts_are_at_work() -> None:
    driven = Driven(*(request(f"r{i}", [i], 40) for i in range(4)), stages=2, runs_ahead=True, token_budget=8)
    for _ in range(4):
        while step := driven.scheduler.next_step(0.0):
            driven.chain.send(step)
        assert len(driven.chain.sent) <= 3
        driven.deliver()
    assert len(driven.chain.sent) == 2
    driven.scheduler.add(request("long", range(50), 1), 0.0)
    driven.send()
    assert driven.scheduler.next_step(0.0) is None
    driven.deliver()
    assert driven.scheduler.next_step(0.0) is None
    driven.deliver()
    driven.send()
    assert len(driven.chain.sent) == 2
    driven.finish()
