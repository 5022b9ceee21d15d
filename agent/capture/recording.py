"""One recording, on the server: fed on the heads' threads, emptied by whoever sends it to the person who asked."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from time import monotonic

import numpy as np

from agent.capture.records import End, Header, Row, Text, encode
from pipeline.messages import Request, RequestEvent, Token, TokenEvent

MAX_WAITING = 32 * 2**20
"""Bytes that wait to be sent; what comes meanwhile is dropped and counted."""

Listener = Callable[[RequestEvent], None]


class Recording:
    """Bounded in bytes and time. `listener` may be called by any thread, what it returns by the heads' threads, `take`
    by one other thread.

    Args:
        header: Of the model that is recorded.
        max_bytes: Of the file.
        seconds: How long.
    """

    def __init__(self, header: Header, *, max_bytes: int, seconds: float) -> None:
        self._header = header
        self._deadline = monotonic() + seconds
        self._left = max_bytes - len(encode(header)) - len(encode(End(2**62, 2**62, 2**62, "x" * 32)))
        self._waiting_bytes = 0
        self._waiting: deque[Text | Row | None] = deque([None])
        """In their order; None: the header."""
        self._numbers = itertools.count()
        self._rows = self._dropped = self._not_finite = 0
        self._is_full = False
        self._cut: set[int] = set()
        """Texts that ended early, because a row of theirs was not finite."""

    @property
    def over(self) -> str | None:
        """Why there is nothing more to come; None while there is."""
        if self._is_full:
            return "it is full"
        return "the time is over" if monotonic() >= self._deadline else None

    def listener(self, request: Request, listener: Listener) -> Listener:
        """A listener of a request that records what it hears, and passes it on."""
        text = _Listener(self, request)

        def hear(event: RequestEvent) -> None:
            if isinstance(event, TokenEvent):
                text.add(event.token)
            listener(event)

        return hear

    def begin(self, prompt: tuple[int, ...], request: Request) -> int | None:
        """Begin a text; its number, or None if there is no room."""
        text = Text(next(self._numbers), prompt, request.sampling)
        return text.number if self._put(text, len(encode(text))) else None

    def add(self, number: int, read: int, token: Token) -> bool:
        """Record a token; whether there was room."""
        assert token.hidden is not None
        row = Row(number, token.position, read, token.token, token.hidden)
        return self._put(row, 4 * self._header.hidden_size + 48)

    def drop(self) -> None:
        """Count a row that is not recorded."""
        self._dropped += 1

    def _put(self, record: Text | Row, size: int) -> bool:
        if self.over is not None:
            return False
        if size > self._left:
            self._is_full = True
            return False
        if self._waiting_bytes + size > MAX_WAITING:
            return False
        self._left -= size
        self._waiting_bytes += size  # of two heads at once one may be lost; `take` sets it right
        self._waiting.append(record)
        return True

    def take(self) -> bytes:
        """What waits to be sent, checked and packed."""
        packed = bytearray()
        while self._waiting:
            record = self._waiting.popleft()
            if record is None:
                packed += encode(self._header)
            elif record.number in self._cut or (isinstance(record, Row) and not np.isfinite(record.hidden).all()):
                self._cut.add(record.number)
                self._not_finite += 1
            else:
                packed += encode(record)
                self._rows += isinstance(record, Row)
        self._waiting_bytes = 0
        return bytes(packed)

    def end(self) -> bytes:
        """The last record; nothing is recorded any more."""
        why = self.over or "it was stopped"
        self._is_full = True
        return self.take() + encode(End(self._rows, self._dropped, self._not_finite, why))


class _Listener:
    """What is recorded of one request: its tokens from the first that came with a hidden state, without a gap."""

    def __init__(self, recording: Recording, request: Request) -> None:
        self._recording, self._request = recording, request
        self._before = list(request.prompt)
        self._last = self._before[-1]
        self._number: int | None = None
        self._is_cut = False

    def add(self, token: Token) -> None:
        if self._recording.over is not None:
            return
        if self._number is None and token.hidden is None:  # the tail has not heard yet that it is wanted
            self._before.append(token.token)
            return
        if not self._is_cut and self._number is None:
            self._number = self._recording.begin(tuple(self._before), self._request)
            self._last = self._before[-1]
        self._is_cut = (
            self._is_cut
            or self._number is None
            or token.hidden is None
            or not self._recording.add(self._number, self._last, token)
        )
        if self._is_cut and self._recording.over is None:
            self._recording.drop()
        self._last = token.token
