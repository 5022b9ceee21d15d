"""A policy and its chain, driven by hand: steps are answered in order, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pipeline.messages import Finished, Request, RequestEvent, Sampling, Step, StepResult, Token, TokenEvent
from pipeline.simulation.kv_meter import KvMeter
from pipeline.simulation.policy import Policy


class DrivenPolicy:
    def __init__(self, policy: Policy, kv: KvMeter | None = None) -> None:
        self.policy, self._kv = policy, kv or KvMeter(4096, 4)
        self.in_flight: deque[Step] = deque()
        self.log: list[Step] = []
        self.tokens: dict[str, int] = {}
        self.ended: set[str] = set()
        self.names: dict[int, str] = {}
        """Of the requests, by the stages' name for them: they get these in the order they came."""
        self._waiting: deque[str] = deque()

    def ask(self, name: str, prompt: int, new: int) -> None:
        self.policy.add(Request(name, (7,) * prompt, Sampling(), new), 0.0)
        self._waiting.append(name)

    def send(self) -> list[Step]:
        """All steps there are to send now."""
        sent: list[Step] = []
        while step := self.policy.next_step(0.0):
            self._kv.take(step)
            for part in step.rows:
                if part.past == 0:
                    self.names[part.sequence] = self._waiting.popleft()
            sent.append(step)
        self.in_flight += sent
        self.log += sent
        return sent

    def deliver(self) -> Step:
        """Answer the oldest step."""
        step = self.in_flight.popleft()
        tokens = tuple(Token(part.sequence, part.past + part.count, 1) for part in step.rows if part.sample)
        self._hear(self.policy.complete(StepResult(step.number, tokens), 0.0))
        return step

    def finish(self) -> None:
        self.send()
        while self.in_flight:
            self.deliver()
            self.send()
        assert self.policy.is_idle

    def shape(self, step: Step) -> list[tuple[str, int, int, int]]:
        """(request, past, count, sample) of each part."""
        return [(self.names[part.sequence], part.past, part.count, part.sample) for part in step.rows]

    def _hear(self, events: Sequence[RequestEvent]) -> None:
        for event in events:
            assert event.request not in self.ended
            if isinstance(event, TokenEvent):
                self.tokens[event.request] = self.tokens.get(event.request, 0) + 1
            else:
                assert isinstance(event, Finished)
                self.ended.add(event.request)
