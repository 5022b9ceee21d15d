from __future__ import annotations

from typing import Any

import pytest
from driven_policy import DrivenPolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from small_systems import load, system

from pipeline.messages import Free, Request, Sampling, Step
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.policies import POLICIES
from pipeline.simulation.report import simulate
from shards.errors import CapacityError, ConfigurationError


def driven(stages: int = 2, *, places: int = 8, **options: Any) -> DrivenPolicy:
    config = SchedulerConfig(kv_tokens=4096, block=4, context_length=1024, stages=stages, max_sequences=places)
    return DrivenPolicy(POLICIES["groups"](config, options))


def test_a_prompt_goes_in_windows_one_a_turn_and_its_last_is_sampled() -> None:
    run = driven(window=4)
    run.ask("a", 10, 2)
    # two groups, two turns; the first takes the admission, and then waits for what it is owed
    assert [run.shape(step) for step in run.send()] == [[("a", 0, 4, 0)], [("a", 4, 4, 0)]]
    run.deliver()
    assert [run.shape(step) for step in run.send()] == [[("a", 8, 2, 1)]]
    run.deliver()
    run.deliver()
    assert run.tokens == {"a": 1}
    assert [run.shape(step) for step in run.send()] == [[("a", 10, 1, 1)]]


def test_one_prompt_is_fed_at_a_time_and_the_next_begins_in_the_turn_that_ends_it() -> None:
    run = driven(stages=4, window=4)
    run.ask("a", 6, 2)
    run.ask("b", 6, 2)
    run.ask("c", 3, 2)
    assert [run.shape(step) for step in run.send()] == [
        [("a", 0, 4, 0)],
        [("a", 4, 2, 1)],
        [("b", 0, 4, 0)],
        [("b", 4, 2, 1)],
        [("c", 0, 3, 1)],
    ]


def test_a_turn_waits_for_the_answers_of_the_groups_last_one_and_admits_one_request_meanwhile() -> None:
    run = driven(stages=2, window=8)
    for name in "abcd":
        run.ask(name, 3, 3)
    assert [run.shape(step)[0][0] for step in run.send()] == ["a", "b", "c"]  # two turns, and one while the third waits
    assert run.send() == []
    run.deliver()  # of a: the first group has both its turn's and c's window to wait for
    assert run.send() == []
    run.deliver()
    assert run.send() == []
    run.deliver()
    assert run.shape(run.send()[0]) == [("d", 0, 3, 1)]


def test_streams_join_the_emptiest_group_and_stay_there() -> None:
    run = driven(stages=3)
    for name in "abcdefg":
        run.ask(name, 2, 12)
    run.finish()
    groups = {"adg", "be", "cf"}
    together = {"".join(sorted(name for name, *_ in run.shape(step))) for step in run.log}
    assert groups <= together
    assert all(any(set(names) <= set(group) for group in groups) for names in together)


def test_prompt_rows_and_answer_rows_never_share_a_step() -> None:
    run = driven(stages=3, window=4)
    for number in range(9):
        run.ask(f"{number}", 3 + 2 * number, 5 + number)
    run.finish()
    assert run.tokens == {f"{number}": 5 + number for number in range(9)}
    _check_steps(run.log, window=4, prompts={number: 3 + 2 * number for number in range(9)})


def test_a_request_waits_for_a_place_and_takes_one_that_is_left() -> None:
    run = driven(places=2)
    for name in "abc":
        run.ask(name, 2, 4)
    run.finish()
    assert run.ended == {"a", "b", "c"}
    begins = next(i for i, step in enumerate(run.log) if any(part.sequence == 2 for part in step.rows))
    operations = [operation for step in run.log[: begins + 1] for operation in step.operations]
    assert sum(isinstance(operation, Free) for operation in operations) == 1


def test_what_no_place_holds_is_refused_naming_both_numbers() -> None:
    config = SchedulerConfig(kv_tokens=64, block=4, context_length=1024, max_sequences=4)
    policy = POLICIES["groups"](config, {})
    policy.add(Request("a", (1,) * 12, Sampling(), 4), 0.0)
    with pytest.raises(CapacityError, match="take 17 tokens and each of 4 places holds 16"):
        policy.add(Request("b", (1,) * 12, Sampling(), 5), 0.0)


@pytest.mark.parametrize("options", [{"groups": 0}, {"window": 0}, {"colour": 1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="policy_options"):
        system(policy="groups", policy_options=options)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    groups=st.integers(1, 5),
    window=st.integers(1, 9),
    places=st.integers(1, 12),
    new=st.integers(1, 9),
)
def test_every_request_ends_whatever_the_lengths(
    prompts: list[int], groups: int, window: int, places: int, new: int
) -> None:
    run = driven(places=places, groups=groups, window=window)
    for number, prompt in enumerate(prompts):
        run.ask(f"{number}", prompt, new)
    run.finish()
    assert run.tokens == {f"{number}": new for number in range(len(prompts))}
    _check_steps(run.log, window, dict(enumerate(prompts)))


def test_full_groups_run_at_the_pace_of_the_slowest_stage() -> None:
    stages = [{"step_ms": [[1, 10], [2, 12]]}, {"step_ms": [[1, 20], [2, 24]]}, {"step_ms": [[1, 10], [2, 12]]}]
    slow = system(*stages, policy="groups", scheduler={"max_sequences": 8})
    outcome = simulate(slow, load(6, 1, 40))
    tokens = outcome.requests["users 0"].tokens
    assert tokens[30] - tokens[20] == pytest.approx(10 * 3 * 24)  # three groups of two, each a step of 24 ms


def _check_steps(log: list[Step], window: int, prompts: dict[int, int]) -> None:
    """Windows are of one prompt and no larger than they may be, prompts follow one another, answers are apart."""
    fed: list[int] = []
    for step in log:
        parts = [part.past < prompts[part.sequence] for part in step.rows]
        assert len(set(parts)) <= 1
        if parts and parts[0]:
            (part,) = step.rows
            assert part.count <= window
            fed.append(part.sequence)
        else:
            assert all(part.count == part.sample == 1 for part in step.rows)
    assert fed == sorted(fed)
