"""Frames on their way to an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter

import zmq

from pipeline import wire
from pipeline.link import Receiver
from pipeline.spin_wait import SpinWait
from pipeline.wire import Frame, Limits
from shards.errors import WireError

_AHEAD = 4
"""Frames read ahead of the engine; more wait in the sockets, and then at the sender."""

_QUIET_SECONDS = 1.0
"""Least time between two warnings."""


class Inbox:
    """A thread that receives and checks frames, and those it holds ready."""

    def __init__(self, receiver: Receiver, limits: Limits, warn: Callable[[str], None], waits: SpinWait) -> None:
        self._receiver, self._limits, self._warn, self._waits = receiver, limits, warn, waits
        self._frames: SimpleQueue[tuple[Frame, float] | Exception | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()  # a semaphore, but one that is not written in Python
        for _ in range(_AHEAD):
            self._room.put(None)
        self._dropped, self._told = 0, -_QUIET_SECONDS

    def start(self) -> None:
        """Begin to receive."""
        threading.Thread(target=self._receive, name="receive", daemon=True).start()

    def fail(self, error: Exception) -> None:
        """Have the next `take` raise, after the frames that are there."""
        self._frames.put(error)

    def take(self) -> tuple[Frame, float] | None:
        """Wait for the next frame and the time it arrived; None at the end."""
        item = self._waits.wait(self._is_ready, self._frames.get)
        self._room.put(None)
        if isinstance(item, Exception):
            raise item
        return item

    def _is_ready(self) -> bool:
        return not self._frames.empty()

    def _receive(self) -> None:
        try:
            while True:
                self._room.get()
                self._frames.put(self._next())
        except zmq.ContextTerminated:
            self._frames.put(None)
        except Exception as error:  # handed to the engine's thread, which ends the process
            self.fail(error)
        finally:
            self._receiver.close()

    def _next(self) -> tuple[Frame, float]:
        while True:
            parts = self._receiver.receive()
            try:
                return wire.decode(parts, self._limits), perf_counter()
            except WireError as error:
                self._drop(error)

    def _drop(self, error: WireError) -> None:
        self._dropped += 1
        now = perf_counter()
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            self._warn(f"dropped {self._dropped} frame{'s' * (self._dropped > 1)} so far; the last: {error}")
