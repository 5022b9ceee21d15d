"""The hub's wire: frames over TCP between its coordinator and a stage, one call and its answer at a time.

All numbers are little-endian. A call is an operation, a sequence, how many of its tokens stay cached, how many rows
follow, and the rows: int64 token ids to the first stage, float32 hidden states to the others. The answer is rows and
their width, and float32 values.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16
"""A caller says the key that the stage was given, or is not heard: other programs of this computer can connect too."""

RUN, FREE = 0, 1

_CALL = struct.Struct("<Bqqq")
_ANSWER = struct.Struct("<qq")

_PATIENCE_SECONDS = 300.0

Values = NDArray[np.int64] | NDArray[np.float32]


class Link:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    @classmethod
    def connect(cls, port: int, key: bytes) -> Link:
        """To a stage at a port of this computer."""
        link = cls(socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS))
        link._socket.sendall(key)
        return link

    def call(self, operation: int, sequence: int, past: int = 0, rows: Values | None = None) -> None:
        """Send a call."""
        count = 0 if rows is None else len(rows)
        self._send(_CALL.pack(operation, sequence, past, count), rows)

    def answer(self, values: NDArray[np.float32]) -> None:
        """Send an answer, [rows, width]."""
        self._send(_ANSWER.pack(*values.shape), values)

    def take_call(self) -> tuple[int, int, int, int]:
        """Wait for the beginning of a call: operation, sequence, past, rows."""
        operation, sequence, past, count = _CALL.unpack(self._take(_CALL.size))
        return operation, sequence, past, count

    def take_answer(self) -> NDArray[np.float32]:
        """Wait for an answer."""
        rows, width = _ANSWER.unpack(self._take(_ANSWER.size))
        return self.take_values((rows, width), np.float32)

    def take_values(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Wait for so many values."""
        values = np.empty(shape, dtype)
        if values.size:
            self._fill(values.data.cast("B"))
        return values

    def take_key(self) -> bytes:
        """Wait for the key, the first that a caller says."""
        return bytes(self._take(KEY_BYTES))

    def close(self) -> None:
        """Hang up; who waits at either end gets an OSError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, header: bytes, values: Values | None) -> None:
        """In one piece: without Nagle's algorithm two would be two packets."""
        self._socket.sendall(header if values is None else b"".join((header, np.ascontiguousarray(values).data)))

    def _take(self, size: int) -> bytearray:
        taken = bytearray(size)
        self._fill(memoryview(taken))
        return taken

    def _fill(self, memory: memoryview) -> None:
        while memory:
            count = self._socket.recv_into(memory)
            if not count:
                raise ConnectionError("the other end has hung up")
            memory = memory[count:]
