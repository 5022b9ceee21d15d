"""How often something may happen: a token bucket. Pure."""

from __future__ import annotations


class Allowance:
    """Lets something happen `most` times at once and `per_second` times on average; not for several threads.

    Args:
        most: Times it may happen after a long rest.
        per_second: How fast the allowance comes back.
        now: Seconds, by a clock that never goes back.
    """

    def __init__(self, most: float, per_second: float, now: float) -> None:
        self._most, self._per_second = most, per_second
        self._left, self._at = float(most), now

    def take(self, now: float) -> bool:
        """Whether it may happen now; if so, it counts."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
