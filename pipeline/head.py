"""The head's decode loop: the only one there is. Steps go out, results come in, listeners hear events."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Protocol

import zmq

from pipeline import sampling_checks, wire
from pipeline.averages import StepLog
from pipeline.bell import Bell
from pipeline.link import Receiver, Sender
from pipeline.messages import Failed, Finished, Request, RequestEvent, StepResult, Usage
from pipeline.scheduler import Scheduler
from pipeline.snapshots import HeadSnapshot, StepSnapshot
from pipeline.stages import LOST_HINT
from pipeline.wire import Frame, Limits
from shards.errors import EdgeAgentError, RequestError, StageError, WireError

_log = logging.getLogger(__name__)

Listener = Callable[[RequestEvent], None]
"""Hears the events of one request, on the head's thread: it must not block."""

STALL_SECONDS = 300.0
"""A step that takes longer than this is taken for lost, and the chain with it."""

_CLOSE_SECONDS = 10.0
_SNAPSHOT_SECONDS = 5.0


class Chain(Protocol):
    """What the head needs of a chain. The sockets are the head's thread's alone from its start on."""

    @property
    def limits(self) -> Limits:
        """Bounds of what travels."""
        ...

    @property
    def receiver(self) -> Receiver:
        """Where results arrive."""
        ...

    @property
    def sender(self) -> Sender:
        """Where steps leave to the first stage."""
        ...

    def on_failure(self, listener: Callable[[StageError], None]) -> None:
        """Call `listener` when a stage has ended unasked."""
        ...

    def cancel(self, branches: Mapping[int, int]) -> None:
        """Tell the stages which rows of guesses are void: of each sequence the last such branch."""
        ...


class Head:
    """Drives a chain with a scheduler, on a thread of its own.

    `submit`, `cancel`, `snapshot` and `close` may be called from any thread. Every request ends in exactly one
    Finished or Failed event.
    """

    def __init__(self, chain: Chain, scheduler: Scheduler, *, stall_seconds: float = STALL_SECONDS) -> None:
        self._chain, self._scheduler, self._stall_seconds = chain, scheduler, stall_seconds
        self._drafter = drafter = scheduler.drafter
        self._listeners: dict[str, Listener] = {}
        self._commands: deque[Callable[[], Iterable[RequestEvent]]] = deque()
        self._bell = Bell()
        self._in_flight: deque[_Sent] = deque()
        self._log = StepLog(chain.limits.epoch)
        self._received_bytes = self._dropped = 0
        self._is_held_up = False
        """The first stage could take no step when one was to be sent. By now it may: the next poll finds that out.
        Asked before the poll, it would be ready, and the step would wait until something else happens."""
        self._failure: EdgeAgentError | None = None
        self._closing = self._ended = False
        self._lock = threading.Lock()
        """Held to take a command, so that none comes in after the last was done."""
        if drafter is not None:
            drafter.on_ready = self._look_again
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)
        self._thread.start()
        chain.on_failure(self._hear_of)

    def submit(self, request: Request, listener: Listener) -> None:
        """Take a request; its events come to `listener`. What the scheduler refuses comes as a Failed event.

        Raises:
            RequestError: a token id or a sampling field is impossible.
            StageError: the chain has failed, or the head is closed.
        """
        limits = self._chain.limits
        if request.prompt and not 0 <= min(request.prompt) <= max(request.prompt) < limits.vocabulary:
            raise RequestError(
                f"token ids lie in 0..{limits.vocabulary - 1}, these in {min(request.prompt)}..{max(request.prompt)}",
                where="prompt",
                hint="Use this model's tokenizer.",
            )
        sampling_checks.validate(request.sampling, limits.vocabulary)
        try:
            wire.check_sampling(request.sampling, limits)
        except WireError as error:
            raise RequestError(error.what, where=(error.where or "").rpartition(".")[2]) from None
        if self._failure is not None:
            raise self._failure
        if not self._command(lambda: self._add(request, listener)):
            raise self._failure or StageError("the head is closed", hint=LOST_HINT)

    def cancel(self, request: str) -> None:
        """End a request early; its last event is Finished("cancelled"). Unknown ones are ignored."""
        self._command(lambda: self._scheduler.cancel(request, monotonic()))

    @property
    def failure(self) -> EdgeAgentError | None:
        """Why the chain serves no more; None while it does."""
        return self._failure

    def snapshot(self) -> HeadSnapshot:
        """What the head is doing now.

        Raises:
            TimeoutError: its thread does not answer.
        """
        asked: Future[HeadSnapshot] = Future()

        def answer() -> tuple[()]:
            asked.set_result(self._snapshot())
            return ()

        if not self._command(answer):
            self._thread.join(_SNAPSHOT_SECONDS)  # it is doing its last commands
            return self._snapshot()
        return asked.result(_SNAPSHOT_SECONDS)

    def close(self) -> None:
        """Cancel what is running, end the thread, close the drafter."""
        self._command(self._close)
        self._thread.join(_CLOSE_SECONDS)
        if self._drafter is not None:
            self._drafter.close()

    def _command(self, command: Callable[[], Iterable[RequestEvent]]) -> bool:
        """Have something done on the head's thread; False if that has ended."""
        with self._lock:
            if self._ended:
                return False
            self._commands.append(command)
            self._bell.ring()
            return True

    def _look_again(self) -> None:
        """There may be something to send: guesses are there."""
        self._command(tuple)

    def _hear_of(self, failure: StageError) -> None:
        self._command(lambda: self._fail(failure))

    # From here on everything runs on the head's thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._chain.receiver.socket, zmq.POLLIN)
        poller.register(self._bell.listener, zmq.POLLIN)
        try:
            while not self._closing:
                poller.register(self._chain.sender.socket, zmq.POLLOUT if self._is_held_up else 0)
                ready = dict(poller.poll(self._patience_ms()))
                began = perf_counter()
                events: list[RequestEvent] = []
                if self._bell.listener in ready:
                    self._bell.hush()
                    while self._commands:
                        events += self._commands.popleft()()
                results = self._take_results(events)
                if not results:
                    self._send_steps()
                done = perf_counter()
                self._deliver(events)
                if results:
                    self._log.add_turn(results, done - began, perf_counter() - done)
        except Exception as error:
            _log.exception("the head has failed")
            self._failure = StageError(f"the head has failed ({error!r})", hint=LOST_HINT)
            # the scheduler may be what failed: it is not asked
            for request, listener in self._listeners.items():
                _hear(listener, Failed(request, self._failure, Usage(0, 0, 0)))
            self._listeners.clear()
        finally:
            self._end()

    def _patience_ms(self) -> int | None:
        """How long to wait for a result; fails the chain when that was too long."""
        if not self._in_flight:
            return None
        first = self._in_flight[0]
        left = first.time + self._stall_seconds - perf_counter()
        if left <= 0:
            what = f"step {first.number} has not come back for {self._stall_seconds:g} s"
            self._deliver(self._fail(StageError(what, where="chain", hint=LOST_HINT)))
            return None
        return int(1e3 * left) + 1

    def _take_results(self, events: list[RequestEvent]) -> int:
        """Take all results that are there; each time the next steps leave before anything else is done."""
        count = 0
        while (parts := self._chain.receiver.receive_nowait()) is not None:
            try:
                result = wire.decode_result(parts, self._chain.limits)
            except WireError as error:
                self._drop(str(error))
                continue
            if not any(sent.number == result.number for sent in self._in_flight):
                self._drop(f"step {result.number} is not on its way")
                continue
            count += 1
            # steps keep their order on the way, so those before this one will not come any more
            while (sent := self._in_flight.popleft()).number != result.number:
                lost = StepResult(sent.number, (), error=f"step {sent.number} was lost on its way")
                events += self._scheduler.complete(lost, monotonic())
            self._received_bytes += len(parts[0])
            if sent.rows and result.error is None:
                now = perf_counter()
                self._log.add_step(now, now - sent.time, result.timings)
            events += self._scheduler.complete(result, monotonic())
            self._send_steps()
            if cancelled := self._scheduler.take_cancelled():
                self._chain.cancel(cancelled)
        return count

    def _drop(self, why: str) -> None:
        self._dropped += 1
        _log.warning("dropped a result: %s", why)

    def _send_steps(self) -> None:
        sender = self._chain.sender
        self._is_held_up = False
        while self._failure is None:
            if not sender.is_ready:
                self._is_held_up = True
                return
            if (step := self._scheduler.next_step(monotonic())) is None:
                return
            frame = Frame(step.number, step.operations, step.rows, step.tokens, echo=step.echo, verifies=step.verifies)
            sender.send(wire.encode(frame, self._chain.limits.epoch, "tokens"))
            self._in_flight.append(_Sent(step.number, len(step.tokens), len(step.rows), perf_counter()))

    def _deliver(self, events: Iterable[RequestEvent]) -> None:
        for event in events:
            ends = isinstance(event, Finished | Failed)
            listener = self._listeners.pop(event.request, None) if ends else self._listeners.get(event.request)
            if isinstance(event, Finished):
                event = Finished(event.request, event.reason, event.usage, self._log.last(perf_counter()))
            if listener is not None and not _hear(listener, event):
                self._listeners.pop(event.request, None)
                self._scheduler.cancel(event.request, monotonic())

    def _add(self, request: Request, listener: Listener) -> Iterable[RequestEvent]:
        """Take a request; one that is refused has its end as the only event."""
        try:
            if self._failure is not None:
                raise self._failure
            self._scheduler.add(request, monotonic())
        except EdgeAgentError as error:
            _hear(listener, Failed(request.id, error, Usage(len(request.prompt), 0, 0)))
        else:
            self._listeners[request.id] = listener
        return ()

    def _fail(self, error: EdgeAgentError) -> Iterable[RequestEvent]:
        self._failure = self._failure or error
        self._in_flight.clear()
        return self._scheduler.fail_all(self._failure, monotonic())

    def _close(self) -> Iterable[RequestEvent]:
        self._closing = True
        self._failure = self._failure or StageError("the head is closed", hint=LOST_HINT)
        return [event for request in self._listeners for event in self._scheduler.cancel(request, monotonic())]

    def _end(self) -> None:
        """Take no more commands, and do those that came before."""
        with self._lock:
            self._ended = True
        while self._commands:
            try:
                self._deliver(self._commands.popleft()())
            except Exception:
                _log.exception("a command of a failed head has failed")
        self._chain.receiver.close()
        self._chain.sender.close()
        self._bell.close()

    def _snapshot(self) -> HeadSnapshot:
        now = perf_counter()
        return HeadSnapshot(
            self._scheduler.snapshot(),
            self._scheduler.requests(monotonic()),
            tuple(StepSnapshot(s.number, s.rows, s.sequences, 1e3 * (now - s.time)) for s in self._in_flight),
            self._log.last(now),
            self._received_bytes,
            self._dropped,
            None if self._failure is None else str(self._failure),
            None if self._drafter is None else self._drafter.facts,
        )


def _hear(listener: Listener, event: RequestEvent) -> bool:
    """Hand an event out; False if the listener fails."""
    try:
        listener(event)
    except Exception:
        _log.exception("the listener of request %s has failed; the request is cancelled", event.request)
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step on its way, and when it left."""

    number: int
    rows: int
    sequences: int
    time: float
