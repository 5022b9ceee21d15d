"""A stage at work: frames come in, the engine runs, frames go out.

The engine's thread owns the engine, the sampler and the sockets frames leave by. A second receives and checks the next
frames while the engine computes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import numpy as np
import zmq
from numpy.typing import NDArray

from pipeline import wire
from pipeline.cancelled import CancelledBranches
from pipeline.inbox import Inbox
from pipeline.link import Receiver, Sender
from pipeline.messages import Fork, Free, Open, Operation, StageTiming, StepResult, Token, Verify
from pipeline.payload import PayloadKind, Rows
from pipeline.run_ahead import LatestTokens
from pipeline.spin_wait import SpinWait, give_way
from pipeline.tail_capture import TailCapture
from pipeline.wire import Frame, Limits
from shards.edges import layer_words
from shards.errors import EdgeAgentError
from shards.runtime import Batch, SequenceRows, StageRuntime


class TailSampler(Protocol):
    """What a tail needs of its sampler."""

    def open(self, operation: Open) -> None:
        """Begin a sequence."""
        ...

    def fork(self, operation: Fork) -> None:
        """Begin a sequence with tokens of another."""
        ...

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        ...

    def expects(self, verify: Verify, position: int) -> bool:
        """Whether rows of guesses, the first at `position`, go on from what was sampled last for their sequence."""
        ...

    def sample(
        self, rows: tuple[SequenceRows, ...], logits: NDArray[np.float32], verifies: tuple[Verify, ...]
    ) -> list[Token]:
        """Pick the tokens of the rows that want one, as far as guesses are right."""
        ...


class StageWorker:
    """Runs the steps of one stage, on the thread that calls `run`.

    Args:
        runtime: The loaded layers.
        sampler: On the tail; None elsewhere.
        receiver: Where steps come from.
        sender: Where they go on to: the next stage, or the head.
        index: Place in the chain, from 0.
        limits: What may arrive.
        sends: How hidden states leave.
        cancelled: Told by the head which rows need not be computed any more.
        latest: On the first stage; None elsewhere.
        waits: How this thread waits.
        warn: Told of dropped frames, at most once a second.
    """

    def __init__(
        self,
        runtime: StageRuntime,
        sampler: TailSampler | None,
        receiver: Receiver,
        sender: Sender,
        *,
        index: int,
        limits: Limits,
        sends: PayloadKind,
        cancelled: CancelledBranches,
        latest: LatestTokens | None = None,
        waits: SpinWait,
        warn: Callable[[str], None],
    ) -> None:
        self.echo: Sender | None = None
        """On the tail of several stages: where results go besides the head."""
        self.capture: TailCapture | None = None
        """On a tail: adds hidden states to its tokens, if it was loaded to and somebody records."""
        self._latest = latest
        self._runtime, self._sampler, self._receiver, self._sender = runtime, sampler, receiver, sender
        self._limits, self._sends = limits, sends
        facts = runtime.facts
        self._name = f"stage {index + 1} (layers {layer_words(facts)})"
        self._cancelled = cancelled
        self._inbox = Inbox(receiver, limits, warn, waits)

    def run(self) -> None:
        """Work until the ZeroMQ context of the sockets is terminated; then both sockets are closed.

        A step the engine refuses (StageError, CapacityError) goes on as an error. Anything else is raised.
        """
        self._inbox.start()
        sent, send_time = perf_counter(), 0.0
        try:
            while (item := self._inbox.take()) is not None:
                frame, arrived = item
                begun = self._latest is not None and not frame.verifies
                error = self._begin(frame) if begun else None  # while its tokens are still on their way
                if self._latest is not None:
                    frame = self._latest.fill(frame)
                taken = perf_counter()
                if frame.verifies:
                    frame = self._without_void(frame)
                if not begun:
                    error = self._begin(frame)
                outcome, error = self._compute(frame, error)
                computed = perf_counter()
                timing = StageTiming(
                    wait=1e6 * (taken - sent),
                    queued=1e6 * (taken - arrived),
                    compute=1e6 * (computed - taken),
                    send=1e6 * send_time,
                    rows=self._runtime.added_rows + sum([part.count for part in frame.rows]) if frame.rows else 0,
                    change=1e3 * self._runtime.change_ms if frame.rows else 0.0,
                )
                self._send(frame, outcome, error, timing)
                give_way()  # or what was sent may leave milliseconds later: this thread has just begun its time slice
                sent = perf_counter()
                send_time = sent - computed
        except zmq.ContextTerminated:
            pass
        finally:
            self._sender.close()
            if self.echo is not None:
                self.echo.close()
            if self._latest is not None:
                self._latest.close()

    def _begin(self, frame: Frame) -> str | None:
        """Apply the operations, and have the engine prepare for the rows; gives the first error there was."""
        error = frame.error
        for operation in frame.operations:  # even after an error: later steps count on them
            try:
                self._apply(operation)
            except EdgeAgentError as problem:
                error = error or f"{self._name}: {problem}"
        if error is None and frame.rows:
            try:
                self._runtime.prepare(frame.rows)
            except EdgeAgentError as problem:
                return f"{self._name}: {problem}"
        return error

    def _compute(
        self, frame: Frame, error: str | None
    ) -> tuple[NDArray[np.float32] | tuple[Token, ...] | None, str | None]:
        """Run the rows, if there was no error yet: hidden states or tokens, or an error."""
        if error is not None or not frame.rows:
            return None, error
        try:
            out = self._runtime.step(Batch(frame.rows, _engine_input(frame.x)))
            if self._sampler is None:
                return out, None
            tokens = tuple(self._sampler.sample(frame.rows, out, frame.verifies))
            return (tokens if self.capture is None else self.capture.given_to(tokens, frame.rows)), None
        except EdgeAgentError as problem:
            return None, f"{self._name}: {problem}"

    def _without_void(self, frame: Frame) -> Frame:
        """The frame without rows of guesses that follow a wrong one."""
        starts = {rows.sequence: rows.past + rows.count - rows.sample for rows in frame.rows}
        void = {
            verify.sequence
            for verify in frame.verifies
            if self._cancelled.covers(verify)
            or (self._sampler is not None and not self._sampler.expects(verify, starts[verify.sequence]))
        }
        return wire.without(frame, void) if void else frame

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Open():
                if self._sampler is not None:
                    self._sampler.open(operation)
            case Fork(source, target, length):
                self._runtime.fork(source, target, length)
                if self._sampler is not None:
                    self._sampler.fork(operation)
            case Free(sequence):
                self._runtime.free(sequence)
                self._cancelled.forget(sequence)
                if self._sampler is not None:
                    self._sampler.free(sequence)

    def _send(
        self,
        frame: Frame,
        outcome: NDArray[np.float32] | tuple[Token, ...] | None,
        error: str | None,
        timing: StageTiming,
    ) -> None:
        timings = (*frame.timings, timing)
        if self._sampler is None:
            if isinstance(outcome, np.ndarray):
                x, rows, verifies = outcome, frame.rows, frame.verifies
            else:
                x, rows, verifies = np.empty((0, self._limits.hidden_size), np.float32), (), ()
            onward = Frame(frame.number, frame.operations, rows, x, timings, error, frame.echo, verifies)
            self._sender.send(wire.encode(onward, self._limits.epoch, self._sends))
            return
        result = StepResult(frame.number, outcome if isinstance(outcome, tuple) else (), timings, error)
        parts = wire.encode_result(result, self._limits.epoch)
        if self.echo is not None and frame.echo:
            self.echo.send(parts[:1])  # the tokens alone, and first: the next step may be waiting
        self._sender.send(parts)
        if self._latest is not None:
            self._latest.hear(result)


def _engine_input(x: Rows) -> NDArray[np.int64] | NDArray[np.float32]:
    return x.astype(np.int64) if x.dtype == np.int32 else x.astype(np.float32, copy=False)
