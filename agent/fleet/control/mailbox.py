"""A queue whose reader waits for sockets at the same time."""

from __future__ import annotations

import socket
from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """Items for one thread, from any other. A ZeroMQ poller can wait for it as for a socket.

    The bell is a socket of the system's, for one of ZeroMQ's must not be used by several threads.
    """

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._bell, self._door = socket.socketpair()
        self._bell.setblocking(False)
        self._door.setblocking(False)

    def fileno(self) -> int:
        """Readable when there are items."""
        return self._door.fileno()

    def put(self, item: _T) -> None:
        """Add an item; once the mailbox is closed it goes nowhere."""
        self._items.append(item)
        try:
            self._bell.send(b"!")
        except BlockingIOError:
            pass  # rung often enough
        except OSError:
            self._items.clear()

    def take(self) -> list[_T]:
        """The items that are there; by the one thread that reads."""
        try:
            self._door.recv(4096)  # before the items, so that none is left without a ring
        except BlockingIOError:
            return []
        # one at a time: others are adding to it
        return [self._items.popleft() for _ in range(len(self._items))]

    def close(self) -> None:
        """Close it; by the one thread that reads."""
        self._bell.close()
        self._door.close()
        self._items.clear()
