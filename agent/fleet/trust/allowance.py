"""How often something may happen: a token bucket."""

from __future__ import annotations

import time
from collections.abc import Callable


class Allowance:
    """Lets something happen `most` times at once and `per_second` times on average; not for several threads.

    Args:
        most: Times it may happen after a long rest.
        per_second: How fast the allowance comes back.
        clock: Seconds that never go back.
    """

    def __init__(self, most: int, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._per_second, self._clock = most, per_second, clock
        self._left, self._at = float(most), clock()

    def take(self) -> bool:
        """Whether it may happen now; if so, it counts."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
