"""How many rows a step is filled up to, since a change of shape costs time. Pure.

A plugin that takes any number of rows prepares its kernels anew whenever that number is another one than in the step
before. For a small model that takes as long as the step itself; then a few rows too many are cheaper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from statistics import median

MOST_ADDED = 32
"""Rows that a step is filled up with at most."""
_LATEST = 7
"""Times of a kind whose median counts: one that was disturbed does nothing."""


class RowShapes:
    """Chooses the shapes of steps, and learns from them what that costs.

    Going on with a shape that is too large costs a little each time, going back to the right one costs much, once. As
    one never knows what comes next, the large shape is kept until what it has cost since it was last needed comes to
    the price of a change: that is never more than twice of what the best choice would have been (ski rental; Karlin
    et al., 1988).
    """

    def __init__(self) -> None:
        self._rows = 0
        """Of the last step, with those added."""
        self._times: dict[int, deque[float]] = defaultdict(_latest)
        """Milliseconds of steps by their rows, where the one before had as many."""
        self._changes = _latest()
        """Milliseconds more, where it had not."""
        self._spent_ms = 0.0

    @property
    def change_ms(self) -> float:
        """What a change of shape costs, as far as it is known."""
        return median(self._changes) if self._changes else 0.0

    def fitting(self, rows: int) -> int:
        """Rows to run a step of `rows` rows with: as many, or as in the step before."""
        before = self._rows
        if rows == before:
            self._spent_ms = 0.0
        if rows >= before or before - rows > MOST_ADDED or not self._changes:
            return rows
        cost = self._step_ms(before) - self._step_ms(rows)
        if self._spent_ms + cost > self.change_ms:
            self._spent_ms = 0.0
            return rows
        self._spent_ms += cost
        return before

    def note(self, rows: int, ms: float) -> float:
        """A step has taken `ms`, with `rows` rows in all; gives what of it goes to the change of shape."""
        is_same = rows == self._rows
        if is_same:
            self._times[rows].append(ms)
        elif rows in self._times:
            self._changes.append(max(0.0, ms - median(self._times[rows])))
        self._rows = rows
        return 0.0 if is_same else min(ms, self.change_ms)

    def _step_ms(self, rows: int) -> float:
        """Linear between the known numbers of rows and beyond them."""
        known = sorted(self._times)
        if len(known) < 2:
            return median(self._times[known[0]]) * rows / known[0] if known else 0.0
        place = min(max(bisect_left(known, rows), 1), len(known) - 1)
        low, high = known[place - 1], known[place]
        least, most = median(self._times[low]), median(self._times[high])
        return least + max(0.0, most - least) / (high - low) * (rows - low)


def _latest() -> deque[float]:
    return deque(maxlen=_LATEST)
