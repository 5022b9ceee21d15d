"""A policy that leads nowhere, or asks for the impossible, is found out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from small_systems import load, system

from pipeline.messages import Finished, Request, RequestEvent, SequenceRows, Step, StepResult, TokenEvent, Usage
from pipeline.simulation.arrivals import Arrivals
from pipeline.simulation.kv_meter import KvMeter
from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.policy import Policy
from pipeline.simulation.report import simulate
from pipeline.simulation.simulation import Simulation
from pipeline.simulation.stage_model import StageModel
from shards.errors import CapacityError, EdgeAgentError, StageError


class _Idler:
    """Takes everything and does nothing."""

    is_idle = False

    def add(self, request: Request, now: float) -> None:
        self.request = request

    def next_step(self, now: float) -> Step | None:
        return None

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        return ()


class _Runner(_Idler):
    """Runs the same row for ever, and never takes a token."""

    def __init__(self) -> None:
        self._steps = 0

    def next_step(self, now: float) -> Step | None:
        self._steps += 1
        return Step(self._steps, (), (SequenceRows(0, 0, 1),), np.zeros(1, np.int32))


class _Glutton(_Idler):
    """Sends more rows than any stage can hold."""

    def next_step(self, now: float) -> Step | None:
        return Step(0, (), (SequenceRows(0, 0, 1000),), np.zeros(1000, np.int32))


class _Quitter(_Runner):
    """Ends the answer before its time."""

    def next_step(self, now: float) -> Step | None:
        return None if self._steps else super().next_step(now)

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        return [Finished(self.request.id, "length", Usage(1, 0, 0))]


class _Chatterer(_Idler):
    """Goes on telling tokens after the end."""

    _steps = 0

    def next_step(self, now: float) -> Step | None:
        self._steps += 1
        return None if self._steps > 1 else Step(0, (), (SequenceRows(0, 0, 1, sample=1),), np.zeros(1, np.int32))

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        return [TokenEvent(self.request.id, result.tokens[0])] * 17


@pytest.mark.parametrize(
    ("policy", "error", "what"),
    [
        (_Idler(), StageError, "nothing is in flight and the policy sends nothing, but 1 requests are open"),
        (_Runner(), StageError, "10002 steps were sent without a new token, and 1 requests are open"),
        (_Glutton(), CapacityError, "the KV cache is full: the batch needs 250 more blocks of 4 tokens, 16 of 16"),
        (_Chatterer(), StageError, "the answer of 'users 0' goes on after its 16 tokens"),
        (_Quitter(), StageError, "the answer of 'users 0' ended after 0 tokens of 16"),
    ],
)
def test_such_policies_end_in_an_error(policy: Policy, error: type[EdgeAgentError], what: str) -> None:
    simulation = Simulation(policy, [StageModel(step_ms=((1, 1),))], [LinkModel()] * 2, KvMeter(64, 4))
    with pytest.raises(error, match=what):
        simulation.run(Arrivals(load()))


def test_what_our_scheduler_refuses_is_said() -> None:
    with pytest.raises(CapacityError, match="the prompt has 70 tokens and the KV cache holds 64"):
        simulate(system(scheduler={"kv_tokens": 64}), load(prompt_tokens=70))
    with pytest.raises(StageError, match="ended after 5 tokens of 10"):
        simulate(system(scheduler={"kv_tokens": 64}), load(prompt_tokens=60, new_tokens=10))


def test_an_answer_that_the_context_cuts_short_is_no_answer() -> None:
    with pytest.raises(StageError, match="ended after 24 tokens of 30"):
        simulate(system(scheduler={"context_length": 64}), load(prompt_tokens=40, new_tokens=30))
