"""Small systems to simulate, and a policy simple enough to work out by hand what it comes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.messages import Finished, Free, Request, RequestEvent, SequenceRows, Step, StepResult, TokenEvent, Usage
from pipeline.simulation.arrivals import Arrivals
from pipeline.simulation.kv_meter import KvMeter
from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.loads import Load
from pipeline.simulation.outcome import Outcome
from pipeline.simulation.report import simulate
from pipeline.simulation.simulation import Simulation
from pipeline.simulation.stage_model import StageModel
from pipeline.simulation.system import System
from pipeline.simulation.topology import Topology

TEN_MS = {"step_ms": [(1, 10), (2, 18), (4, 30)]}


def system(*stages: dict[str, Any], scheduler: dict[str, Any] | None = None, **more: Any) -> System:
    """Ours over these stages."""
    told = {"kv_tokens": 4096, "block": 4, "context_length": 1024, **(scheduler or {})}
    return System.model_validate({"stages": stages or (TEN_MS,), "scheduler": told, **more})


def load(users: int = 1, prompt_tokens: Any = 1, new_tokens: Any = 16, **more: Any) -> Load:
    return Load.model_validate({"users": users, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, **more})


def gaps_of(outcome: Outcome) -> list[list[float]]:
    """Milliseconds between the last tokens of each request, when everybody has long been at it."""
    return [
        [round(b - a, 6) for a, b in zip(request.tokens[-6:-1], request.tokens[-5:], strict=True)]
        for request in outcome.requests.values()
    ]


def gap(simulated: System, asked: Load) -> float:
    """The one time between two late tokens that all requests have."""
    gaps = gaps_of(simulate(simulated, asked))
    (only,) = {value for of_one in gaps for value in of_one}
    return only


class FixedGroups:
    """Requests in groups of given sizes, in the order they come; a group's step leaves when its last one is back.

    A prompt is one row (that of the first step, whatever its length), so that every step of a group is alike.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._rooms = deque(i for i, size in enumerate(sizes) for _ in range(size))
        self._members: list[list[int]] = [[] for _ in sizes]
        self._requests: list[Request] = []
        self._answered: list[int] = []
        self._sizes, self._ready = sizes, deque(range(len(sizes)))
        self._in_flight: dict[int, int] = {}
        self._ended: list[int] = []
        self._steps = 0

    def add(self, request: Request, now: float) -> None:
        self._members[self._rooms.popleft()].append(len(self._requests))
        self._requests.append(request)
        self._answered.append(0)

    def next_step(self, now: float) -> Step | None:
        while self._ready:
            group = self._ready[0]
            if len(self._members[group]) < self._sizes[group] and not self._steps:
                return None  # before all are there nothing begins
            self._ready.popleft()
            members = [i for i in self._members[group] if self._answered[i] < self._requests[i].max_tokens]
            if members or self._ended:
                rows = tuple(SequenceRows(i, self._answered[i], 1, sample=1) for i in members)
                step = Step(self._steps, tuple(Free(i) for i in self._ended), rows, np.zeros(len(rows), np.int32))
                self._ended = []
                self._in_flight[step.number] = group
                self._steps += 1
                return step
        return None

    def complete(self, result: StepResult, now: float) -> list[RequestEvent]:
        self._ready.append(self._in_flight.pop(result.number))
        events: list[RequestEvent] = []
        for token in result.tokens:
            request = self._requests[token.sequence]
            self._answered[token.sequence] += 1
            events.append(TokenEvent(request.id, token))
            if self._answered[token.sequence] == request.max_tokens:
                self._ended.append(token.sequence)
                events.append(Finished(request.id, "length", Usage(1, 0, request.max_tokens)))
        return events

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._ended


def run_groups(
    sizes: Sequence[int], stages: Sequence[dict[str, Any]], link: LinkModel | None = None, topology: Topology = "chain"
) -> Outcome:
    """Users in groups of these sizes, each with a step of its own on the way."""
    models = [StageModel.model_validate(stage) for stage in stages]
    links = [link or LinkModel()] * (len(models) + (topology == "chain"))
    simulation = Simulation(FixedGroups(sizes), models, links, KvMeter(4096, 4), topology=topology)
    return simulation.run(Arrivals(load(sum(sizes))))
