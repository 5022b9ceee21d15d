"""What the published systems' policies share: requests with a fixed place in the KV cache, and steps made of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.messages import (
    Finished,
    Free,
    Open,
    Operation,
    Request,
    RequestEvent,
    SequenceRows,
    Step,
    StepResult,
    TokenEvent,
    Usage,
)
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.drafter import Drafter
from shards.errors import CapacityError, ConfigurationError


def refuse_drafter(drafter: Drafter | None) -> None:
    """Raise the ConfigurationError of a policy that asks no drafter, if there is one."""
    if drafter is not None:
        raise ConfigurationError("this policy does not use guesses; ours does", where="draft")


@dataclass(eq=False, slots=True)
class Stream:
    """A request in one of the places."""

    request: Request
    id: int
    tokens: list[int] = field(init=False)
    """Prompt and answer so far."""
    sent: int = 0
    """Tokens that the stages have been sent."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def unsent(self) -> int:
        """Rows to run before the next token can be sampled; 0 while it waits for a result."""
        return len(self.tokens) - self.sent

    @property
    def is_feeding(self) -> bool:
        """Whether part of its prompt has not been sent."""
        return self.sent < len(self.request.prompt)


class Completed(NamedTuple):
    """What a result has brought."""

    ready: list[Stream]
    """Those that have a token to go on from."""
    ended: list[Stream]
    events: list[RequestEvent]


class Streams:
    """All requests of a policy. Each place holds an equal part of the KV cache from the beginning.

    Args:
        config: Of the chain; `max_sequences` is the number of places.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._places = config.max_sequences
        blocks = config.kv_tokens // config.block // config.max_sequences
        self._most = min(blocks * config.block, config.context_length)
        self._open: dict[int, Stream] = {}
        self._operations: list[Operation] = []
        self._next_id = self._next_step = 0
        self._in_flight: set[int] = set()
        self._pending: deque[Request] = deque()
        """Requests without a place, first come first served."""

    def add(self, request: Request) -> None:
        """Take a request in.

        Raises:
            CapacityError: prompt and answer are longer than a place.
        """
        wanted = len(request.prompt) + request.max_tokens
        if wanted > self._most:
            raise CapacityError(
                f"prompt and answer take {wanted} tokens and each of {self._places} places holds {self._most}",
                where="prompt",
                hint="Give the stages a larger kv_tokens, or let fewer run at once.",
            )
        self._pending.append(request)

    def admit(self) -> Stream | None:
        """Give a place to the request that has waited longest; None if there is no place, or nobody waits."""
        if not self._pending or len(self._open) == self._places:
            return None
        stream = Stream(self._pending.popleft(), self._next_id)
        self._next_id += 1
        self._open[stream.id] = stream
        self._operations.append(Open(stream.id, stream.request.sampling))
        return stream

    def step(self, batch: Sequence[tuple[Stream, int]]) -> Step:
        """A step with the next so many tokens of each stream."""
        rows: list[SequenceRows] = []
        tokens: list[int] = []
        for stream, count in batch:
            rows.append(SequenceRows(stream.id, stream.sent, count, sample=int(count == stream.unsent)))
            tokens += stream.tokens[stream.sent : stream.sent + count]
            stream.sent += count
        return self._step(tuple(rows), tokens)

    def farewell(self) -> Step | None:
        """A step that only frees what has ended, if anything has."""
        return self._step((), []) if self._operations else None

    def complete(self, result: StepResult) -> Completed:
        """Take a result."""
        self._in_flight.discard(result.number)
        done = Completed([], [], [])
        for token in result.tokens:
            stream = self._open[token.sequence]
            stream.tokens.append(token.token)
            request, completion = stream.request, len(stream.tokens) - len(stream.request.prompt)
            done.events.append(TokenEvent(request.id, token))
            if completion < request.max_tokens:
                done.ready.append(stream)
                continue
            del self._open[stream.id]
            self._operations.append(Free(stream.id))
            done.ended.append(stream)
            done.events.append(Finished(request.id, "length", Usage(len(request.prompt), 0, completion)))
        return done

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not (self._pending or self._open or self._operations or self._in_flight)

    def _step(self, rows: tuple[SequenceRows, ...], tokens: list[int]) -> Step:
        step = Step(self._next_step, tuple(self._operations), rows, np.array(tokens, np.int32))
        self._operations.clear()
        self._next_step += 1
        self._in_flight.add(step.number)
        return step
