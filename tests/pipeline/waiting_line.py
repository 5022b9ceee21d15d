"""A waiting queue with its clock, and a server that works through it, for tests of who goes when."""

from __future__ import annotations

from collections import Counter

from simulated_chain import request

from pipeline.admission import AdmissionQueue
from pipeline.messages import Service
from pipeline.sequence import Sequence

AGEING = 0.1
"""Priority levels a second."""


class WaitingLine:
    """A queue and its clock."""

    def __init__(self, ageing: float = AGEING) -> None:
        self.queue = AdmissionQueue(ageing)
        self.now = 0.0

    def add(
        self,
        name: str,
        *,
        at: float | None = None,
        client: str | None = None,
        priority: int = 0,
        prompt: int = 1,
        answer: int = 1,
        service: Service = "interactive",
    ) -> Sequence:
        """Of the client of the name's first letter, unless another is named; `prompt` and `answer` are lengths."""
        self.now = self.now if at is None else at
        client = name[0] if client is None else client
        sequence = Sequence(request(name, [1] * prompt, answer, client=client, priority=priority, service=service))
        self.queue.add(sequence, self.now)
        return sequence

    def pop(self, *, at: float | None = None) -> str:
        return self.take(at=at).request.id

    def take(self, *, at: float | None = None) -> Sequence:
        self.now = self.now if at is None else at
        sequence = self.queue.peek(self.now)
        assert sequence is not None
        self.queue.pop(sequence, self.now)
        return sequence

    def rest(self) -> list[str]:
        return [self.pop() for _ in range(len(self.queue))]


class Server:
    """Works through a line: a step gives each of the running requests a row, or its first some rows of its prompt.

    Args:
        line: What waits.
        slots: Requests that run at once.
        step_seconds: Time of a step.
        chunk: Rows of a prompt in a step.
    """

    def __init__(self, line: WaitingLine, slots: int, step_seconds: float = 0.01, chunk: int = 16) -> None:
        self.line, self.slots, self.step_seconds, self.chunk = line, slots, step_seconds, chunk
        self.running: dict[Sequence, int] = {}
        """How many rows each has had."""
        self.given: Counter[str] = Counter()
        """Tokens of each client."""
        self.began: dict[str, float] = {}
        """When each request had its turn."""

    def step(self) -> list[Sequence]:
        """Let in whom there is a slot for, run a step, and tell who has ended."""
        line = self.line
        while len(self.running) < self.slots and len(line.queue):
            sequence = line.take()
            self.running[sequence] = 0
            self.began[sequence.request.id] = line.now
        ended = []
        for sequence, had in list(self.running.items()):
            request = sequence.request
            whole = len(request.prompt) + request.max_tokens
            rows = min(self.chunk, len(request.prompt) - had) if had < len(request.prompt) else 1
            line.queue.charge(request.client, rows, request.service)
            self.given[request.client] += rows
            self.running[sequence] = had + rows
            if had + rows == whole:
                del self.running[sequence]
                ended.append(sequence)
        line.now += self.step_seconds
        return ended
