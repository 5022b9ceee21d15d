"""The last things that happened to a fleet, for people."""

from __future__ import annotations

from collections import deque
from time import time
from typing import Any

_EVENTS = 200
_LONGEST = 1000
"""Characters of an event; parts of it may be what another PC says."""


class EventLog:
    """Remembers the newest events; from any thread."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)

    def add(self, what: str) -> None:
        """Something happened."""
        self._events.append((time(), what[:_LONGEST]))

    def describe(self) -> list[dict[str, Any]]:
        """As JSON data, oldest first; times are seconds since 1970."""
        return [{"time": when, "what": what} for when, what in list(self._events)]
