"""The nodes one fetches from, all at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import zmq

from agent.fleet.bulk.bulk_client import BulkClient, Source
from agent.fleet.bulk.bulk_messages import Want
from agent.fleet.trust.sockets import Context
from pipeline.link import KeyPair
from shards.errors import ConfigurationError, WireError


@dataclass(frozen=True, slots=True)
class Reply:
    """What a source says to what it was asked: bytes, or why it has none."""

    source: Source
    want: Want
    data: bytes
    refusal: str | None


@dataclass(slots=True)
class _End:
    client: BulkClient
    unanswered: dict[int, Want] = field(default_factory=dict)
    """By number of the request."""
    heard: float = 0.0
    """When it last said something, or was first asked after it had said all."""


class Crew:
    """Connections to sources. One that is silent for too long, or says what it was not asked, is dropped for good.

    Args:
        sources: Whom to connect to.
        keys: Of this node.
        stall_seconds: How long a source may be silent while it owes answers.
    """

    def __init__(self, sources: Sequence[Source], keys: KeyPair, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._sources = tuple(dict.fromkeys(sources))  # each once
        self._ends: dict[Source, _End] = {}
        self._faults: dict[Source, str] = {}
        self._context = Context()
        self._poller = zmq.Poller()
        for source in self._sources:
            try:
                client = BulkClient(self._context, keys, source)
            except ConfigurationError as error:
                self._faults[source] = error.what
                continue
            self._ends[source] = _End(client)
            self._poller.register(client.socket, zmq.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for end in self._ends.values():
            end.client.close()
        self._context.term()

    @property
    def sources(self) -> Collection[Source]:
        """Those that have not been dropped."""
        return tuple(self._ends)

    @property
    def owes(self) -> bool:
        """Whether any source has yet to answer."""
        return any(end.unanswered for end in self._ends.values())

    def unanswered(self, source: Source) -> int:
        """Requests a source has yet to answer."""
        return len(self._ends[source].unanswered)

    def ask(self, source: Source, want: Want) -> None:
        """Ask a source for something."""
        end = self._ends[source]
        if not end.unanswered:
            end.heard = time.monotonic()
        end.unanswered[end.client.ask(want)] = want

    def receive(self, seconds: float) -> Iterator[Reply]:
        """Wait for answers, and drop the sources that have been silent for too long."""
        ready = dict(self._poller.poll(math.ceil(seconds * 1000)))
        now = time.monotonic()
        for source, end in tuple(self._ends.items()):
            if end.client.socket in ready:
                yield from self._replies(source, end, now)
            elif end.unanswered and now - end.heard > self._stall_seconds:
                self.drop(source, f"no answer for {self._stall_seconds:.0f} s")

    def drop(self, source: Source, why: str) -> None:
        """Ask a source no more."""
        if end := self._ends.pop(source, None):
            self._poller.unregister(end.client.socket)
            end.client.close()
            self._faults[source] = why

    def faults(self, otherwise: str) -> str:
        """Every source, and what was wrong with it, for an error's text."""
        faults = [f"{source}: {self._faults.get(source, otherwise)}" for source in self._sources]
        return "; ".join(faults) or "there was nobody to ask"

    def _replies(self, source: Source, end: _End, now: float) -> Iterator[Reply]:
        try:
            while source in self._ends and (received := end.client.receive()) is not None:
                answer, data = received
                want = end.unanswered.pop(answer.number, None)
                if want is None:
                    raise WireError(answer.refusal or "it answered what it was not asked")
                end.heard = now
                yield Reply(source, want, data, answer.refusal)
        except WireError as error:
            self.drop(source, error.what)
