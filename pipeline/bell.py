"""Waking a thread that waits for sockets."""

from __future__ import annotations

import zmq


class Bell:
    """Wakes a thread out of its poll. `ring` under a lock, from any thread; the rest on the one that is woken."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=0)
        self.listener = self._context.socket(zmq.PAIR)
        self.listener.bind("inproc://bell")
        self._striker = self._context.socket(zmq.PAIR)
        self._striker.connect("inproc://bell")
        self._rung = False

    def ring(self) -> None:
        """Wake the thread, or have its next poll return at once."""
        if not self._rung:
            self._rung = True
            self._striker.send(b"")

    def hush(self) -> None:
        """Before the work that was rung for is looked at: what comes after that rings again."""
        self.listener.recv()
        self._rung = False

    def close(self) -> None:
        """Let go of the sockets; nothing rings any more."""
        self._context.destroy(linger=0)
