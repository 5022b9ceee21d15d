"""Several copies of a model behind one head's face."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from pipeline.affinity import PrefixAffinity
from pipeline.messages import Failed, Finished, Request, RequestEvent, Usage
from pipeline.scheduler_config import SchedulerConfig
from shards.errors import EdgeAgentError, OverloadedError, StageError

Listener = Callable[[RequestEvent], None]

_RETRY_SECONDS = 10.0
"""When to come again while no copy runs: a model takes a while to load."""

_WORTH = 2
"""Requests that having the beginning of a prompt makes up for: so many more, of its strength, a copy may have than the
one with the least to do."""


class TakesRequests(Protocol):
    """What is used of a head."""

    def submit(self, request: Request, listener: Listener) -> None:
        """Take a request; its events come to the listener."""
        ...

    def cancel(self, request: str) -> None:
        """End a request early."""
        ...


class Replicas:
    """Gives each request to the copy with the least to do for its strength, or to one that has lately had the same
    beginning of a prompt and has little more to do; while there is none, requests wait.

    Its methods may be called from any thread.

    Args:
        busy: Told whether requests are at work, whenever that changes; must be quick.
        max_waiting: Most requests that wait for a copy.
    """

    def __init__(
        self, busy: Callable[[bool], None] = lambda busy: None, max_waiting: int = SchedulerConfig.max_waiting
    ) -> None:
        self._busy, self._max_waiting = busy, max_waiting
        self._affinity = PrefixAffinity[TakesRequests]()
        self._shares: dict[TakesRequests, float] = {}
        """How much each copy can do."""
        self._open: dict[str, TakesRequests] = {}
        self._parked: dict[str, tuple[Request, Listener]] = {}
        self._refusal: EdgeAgentError | None = None
        """Why requests need not wait for a copy."""
        self._changed = threading.Condition()

    def replace(self, copies: Iterable[tuple[TakesRequests, float]]) -> None:
        """From now on requests go to these copies (with the rate each can do); those that wait go first.

        Requests that run on another copy stay there.
        """
        with self._changed:  # until each has its copy, so that none can be cancelled in between and run all the same
            self._shares, self._refusal = dict(copies), None
            self._affinity.keep(self._shares.__contains__)
            parked, self._parked = (self._parked, {}) if self._shares else ({}, self._parked)
            for request, listener in parked.values():
                try:
                    self.submit(request, listener)
                except EdgeAgentError as error:
                    listener(Failed(request.id, error, Usage(len(request.prompt), 0, 0)))

    def remove(self, copy: TakesRequests) -> None:
        """Give a copy no more requests."""
        with self._changed:
            self._shares.pop(copy, None)
            self._affinity.keep(self._shares.__contains__)

    def drain(self, copy: TakesRequests, seconds: float) -> bool:
        """Wait until a copy has no request left; whether that came within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: copy not in self._open.values(), seconds)

    def give_up(self, error: EdgeAgentError) -> None:
        """There will be no copy for now: end the requests that wait for one, and refuse others, until `replace`."""
        with self._changed:
            parked, self._parked, self._refusal = self._parked, {}, error
        for request, listener in parked.values():
            listener(Failed(request.id, error, Usage(len(request.prompt), 0, 0)))

    @property
    def parked(self) -> int:
        """Requests that wait for a copy."""
        return len(self._parked)

    def submit(self, request: Request, listener: Listener) -> None:
        """Take a request; see Head.submit.

        Raises:
            RequestError: the request is impossible.
            OverloadedError: there is no copy, and too many requests wait for one.
            EdgeAgentError: the last copy has failed, or there is none and will be none.
        """
        with self._changed:
            if not self._shares:
                if self._refusal is not None:
                    raise self._refusal
                if len(self._parked) >= self._max_waiting:
                    raise OverloadedError(
                        f"no copy of the model runs at the moment, {len(self._parked)} requests wait for one, "
                        f"and at most {self._max_waiting} may",
                        hint="Ask again in a moment.",
                        retry_seconds=_RETRY_SECONDS,
                    )
                self._parked[request.id] = request, listener
                return
            while not self._hand_out(request, listener):
                pass

    def cancel(self, request: str) -> None:
        """End a request early; unknown ones are ignored."""
        with self._changed:
            copy, parked = self._open.get(request), self._parked.pop(request, None)
        if copy is not None:
            copy.cancel(request)
        elif parked is not None:
            parked[1](Finished(request, "cancelled", Usage(len(parked[0].prompt), 0, 0)))

    def _hand_out(self, request: Request, listener: Listener) -> bool:
        """Give a request to a copy; False: that one has failed, and there are others."""
        chosen = self._choose(request)
        self._open[request.id] = chosen
        if len(self._open) == 1:
            self._busy(True)
        try:
            chosen.submit(request, lambda event: self._hear(listener, event))
        except BaseException as error:
            self._forget(request.id)
            if not isinstance(error, StageError) or len(self._shares) == 1:
                raise
            del self._shares[chosen]  # it has nothing to do, so every request would go there
            return False
        return True

    def _choose(self, request: Request) -> TakesRequests:
        if len(self._shares) == 1:
            return next(iter(self._shares))
        loads = dict.fromkeys(self._shares, 0)
        for copy in self._open.values():
            if copy in loads:
                loads[copy] += 1

        def wait(copy: TakesRequests, more: int = 0) -> float:
            return (loads[copy] + 1 + more) / self._shares[copy]

        chosen = min(loads, key=wait)
        familiar = self._affinity.find(request.prompt)
        if familiar in loads and wait(familiar) <= wait(chosen, _WORTH):
            chosen = familiar
        self._affinity.note(request.prompt, chosen)
        return chosen

    def _hear(self, listener: Listener, event: RequestEvent) -> None:
        if isinstance(event, Finished | Failed):
            self._forget(event.request)
        listener(event)

    def _forget(self, request: str) -> None:
        with self._changed:
            if self._open.pop(request, None) is not None and not self._open:
                self._busy(False)
            self._changed.notify_all()
