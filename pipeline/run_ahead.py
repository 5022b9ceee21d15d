"""Filling in, at the first stage, tokens that the head had not seen when it sent their rows.

So the next step of a sequence can wait at the first stage while the one before is still on its way, and starts when its
token is sampled: neither the head nor the way to it and back costs time between two tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline import wire
from pipeline.link import Receiver
from pipeline.messages import NOT_YET, Free, StepResult
from pipeline.spin_wait import SpinWait
from pipeline.wire import Frame, Limits

_NO_TOKEN = 0
"""Stands in for a token that was never sampled, because its step failed; the head drops what becomes of it."""


class LatestTokens:
    """The token sampled last for each sequence.

    Args:
        echo: Where the tail's results arrive. None if this stage is the tail itself; then it tells them by `hear`.
        limits: Of the chain.
        waits: How the engine's thread waits.
    """

    def __init__(self, echo: Receiver | None, limits: Limits, waits: SpinWait) -> None:
        self._echo, self._limits, self._waits = echo, limits, waits
        self._tokens: dict[int, tuple[int, int]] = {}
        """(position, token) of each sequence."""
        self._sampled_in: dict[int, int] = {}
        """Number of the last step that each sequence has a sampled row in."""
        self._heard = -1
        """Number of the last step whose result is known."""

    def fill(self, frame: Frame) -> Frame:
        """The frame with all its tokens, waiting for those that are not sampled yet.

        Raises:
            zmq.ContextTerminated: the link is closing.
            WireError: the tail does not speak as agreed.
        """
        while self._echo is not None and (parts := self._echo.receive_nowait()) is not None:
            self._hear(parts)
        tokens, start = frame.x.tolist(), 0
        for rows in frame.rows:
            if tokens[start] == NOT_YET:
                tokens[start] = self._token(rows.sequence, rows.past)
            if rows.sample and frame.echo:
                self._sampled_in[rows.sequence] = frame.number
            start += rows.count
        for operation in frame.operations:
            if isinstance(operation, Free):
                self._tokens.pop(operation.sequence, None)
                self._sampled_in.pop(operation.sequence, None)
        return replace(frame, x=np.array(tokens, np.int32))

    def hear(self, result: StepResult) -> None:
        """Learn what was sampled; of sequences that were freed meanwhile nothing is kept."""
        self._heard = result.number
        for token in result.tokens:
            if token.sequence in self._sampled_in:
                self._tokens[token.sequence] = token.position, token.token

    def close(self) -> None:
        """Close the socket; from its own thread."""
        if self._echo is not None:
            self._echo.close()

    def _token(self, sequence: int, position: int) -> int:
        echo = self._echo
        while echo is not None and self._heard < self._sampled_in.get(sequence, -1):
            self._hear(self._waits.wait(lambda: echo.is_ready, echo.receive))
        known, token = self._tokens.get(sequence, (-1, _NO_TOKEN))
        return token if known == position else _NO_TOKEN

    def _hear(self, parts: list[bytes]) -> None:
        self.hear(wire.decode_result(parts, self._limits))
