"""Results on their way to the head."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import zmq

from pipeline import wire
from pipeline.link import Sender
from pipeline.messages import StepResult


class Outbox:
    """A thread that packs and sends results, and owns the socket.

    Args:
        sender: To the head.
        epoch: Of the chain.
        fail: Told of an error that no result should cause.
    """

    def __init__(self, sender: Sender, epoch: int, fail: Callable[[Exception], None]) -> None:
        self._sender, self._epoch, self._fail = sender, epoch, fail
        self._results: SimpleQueue[StepResult | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="send", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def post(self, result: StepResult) -> None:
        """Have a result sent, after those before it."""
        self._results.put(result)

    def end(self) -> None:
        """Send what was posted, unless the ZeroMQ context is terminated, and close the socket."""
        self._results.put(None)
        self._thread.join()

    def _send(self) -> None:
        try:
            while (result := self._results.get()) is not None:
                self._sender.send(wire.encode_result(result, self._epoch))
        except zmq.ContextTerminated:
            pass
        except Exception as error:  # handed to the engine's thread, which ends the process
            self._fail(error)
        finally:
            self._sender.close()
