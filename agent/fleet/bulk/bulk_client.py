"""The side of a bulk connection that asks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import zmq

from agent.fleet.bulk.bulk_messages import ANSWER_BYTES, WINDOW, Answer, Request, Want, encode, read_answer
from agent.fleet.trust import sockets
from agent.fleet.trust.sockets import Context
from pipeline.link import KeyPair
from shards.errors import WireError


@dataclass(frozen=True, slots=True)
class Source:
    """A node to fetch from: its key, its name for people, and where its bulk socket is."""

    key: str
    name: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.name} ({self.address}:{self.port})"


class BulkClient:
    """A connection to a source; of one thread.

    Args:
        context: Any.
        keys: Of this node.
        source: Whom to ask.

    Raises:
        ConfigurationError: the address is none.
    """

    def __init__(self, context: Context, keys: KeyPair, source: Source) -> None:
        self.source = source
        self.socket = sockets.connect(
            context, zmq.DEALER, keys, source.key, source.address, source.port,
            max_bytes=ANSWER_BYTES, waiting=4 * WINDOW,
        )  # fmt: skip
        self._numbers = itertools.count(1)

    def ask(self, want: Want) -> int:
        """Ask for something, with fewer than `WINDOW` requests unanswered; returns the number the answer will have."""
        number = next(self._numbers)
        self.socket.send(encode(Request(number=number, want=want)), zmq.NOBLOCK)
        return number

    def receive(self, seconds: float = 0.0) -> tuple[Answer, bytes] | None:
        """The next answer and its bytes; None if none comes in time.

        Raises:
            WireError: what came is no answer.
        """
        if not self.socket.poll(round(seconds * 1000)):
            return None
        return read_answer(self.socket.recv_multipart())

    def call(self, want: Want, seconds: float) -> bytes:
        """Ask and wait for the answer.

        Raises:
            WireError: none came in time, it was a refusal, or no answer at all.
        """
        number = self.ask(want)
        while (received := self.receive(seconds)) is not None:
            answer, data = received
            if answer.refusal is not None:
                raise WireError(answer.refusal, where=str(self.source))
            if answer.number == number:
                return data
        raise WireError(f"no answer within {seconds:.0f} s", where=str(self.source))

    def close(self) -> None:
        """End the connection."""
        self.socket.close()
