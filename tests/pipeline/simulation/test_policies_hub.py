from __future__ import annotations

import pytest
from driven_policy import DrivenPolicy
from small_systems import load, system

from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.policies import POLICIES
from pipeline.simulation.report import simulate
from shards.errors import ConfigurationError


def driven(places: int = 8) -> DrivenPolicy:
    config = SchedulerConfig(kv_tokens=4096, block=4, context_length=1024, stages=2, max_sequences=places)
    return DrivenPolicy(POLICIES["hub"](config, {}))


def test_each_stream_has_one_step_of_its_own_on_the_way() -> None:
    run = driven()
    run.ask("a", 20, 2)
    run.ask("b", 3, 2)
    assert [run.shape(step) for step in run.send()] == [[("a", 0, 20, 1)], [("b", 0, 3, 1)]]
    assert run.send() == []
    run.deliver()
    assert [run.shape(step) for step in run.send()] == [[("a", 20, 1, 1)]]
    run.finish()
    assert run.tokens == {"a": 2, "b": 2}


def test_a_request_without_a_place_waits_for_one() -> None:
    run = driven(places=1)
    run.ask("a", 2, 2)
    run.ask("b", 2, 1)
    assert [run.shape(step) for step in run.send()] == [[("a", 0, 2, 1)]]
    run.deliver()
    assert [run.shape(step) for step in run.send()] == [[("a", 2, 1, 1)]]
    run.deliver()
    assert [run.shape(step) for step in run.send()] == [[("b", 0, 2, 1)]]
    run.finish()


def test_it_has_no_options() -> None:
    with pytest.raises(ConfigurationError, match="no options, these are"):
        system(policy="hub", policy_options={"groups": 2})


def test_a_token_takes_all_stages_and_round_trips_and_a_second_user_waits_at_the_lock() -> None:
    """The paper's own arithmetic, with its figures: 61 ms a token for one user."""
    two = system(
        {"step_ms": [[1, 20]]},
        {"step_ms": [[1, 22]], "call_ms": 6},
        policy="hub",
        topology="hub",
        local_head=True,
        head_ms=7,
        link={"latency_ms": 3},
    )
    alone = simulate(two, load(1, 1, 20)).requests["users 0"].tokens
    assert alone[10] - alone[9] == pytest.approx(20 + 3 + 22 + 6 + 3 + 7)
    shared = simulate(two, load(2, 1, 20)).requests["users 0"].tokens
    assert shared[10] - shared[9] == pytest.approx(2 * (3 + 22 + 6 + 3))  # the connection is locked so long for each
