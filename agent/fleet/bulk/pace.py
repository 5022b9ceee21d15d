"""Holding bulk transfers back while tokens flow. Pure: whoever uses it brings the clock."""

from __future__ import annotations

from collections import deque

SHARE = 0.1
"""Of a link's rate, for bulk transfers while tokens flow: no token waits longer than a tenth of the time."""

ASSUMED_RATE = 12.5e6
"""Bytes a second of a link nobody has measured: what common wireless links give."""


class Pace:
    """A token bucket that holds no more than nothing: bytes go one message at a time, evenly spaced.

    Nothing is saved up while it is quiet, because a burst of saved bytes is what would stand before a token's frame.
    `busy` and `rate` may be set by other threads.
    """

    def __init__(self, rate: float = ASSUMED_RATE, share: float = SHARE) -> None:
        self.busy = False
        """Whether tokens flow; without them there is no limit."""
        self.rate = rate
        """Bytes per second of the link."""
        self._share = share
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next message may go; 0: it may go now."""
        return max(0.0, self._free_at - now) if self.busy else 0.0

    def spend(self, size: int, now: float) -> None:
        """A message of `size` bytes goes."""
        if self.busy:
            self._free_at = max(self._free_at, now) + size / (self.rate * self._share)


class Meter:
    """How fast a count grows, over the last seconds."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._counts: deque[tuple[float, float]] = deque()

    def rate(self, count: float, now: float) -> float:
        """Note the count; returns its growth per second, 0 at first."""
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] <= now - self._seconds:
            self._counts.popleft()
        then, before = self._counts[0]
        return (count - before) / (now - then) if now > then else 0.0
