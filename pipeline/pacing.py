"""How many steps travel down the chain at once, and how many rows a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.monotone import monotone

StepTimes = Sequence[tuple[int, float]]
"""Measured (rows, milliseconds) of the chain's slowest stage, one row a sequence."""


_WORTHWHILE = 0.9
"""Another pace than one group a stage must take less than this part of its time: measured tables lie a bit."""


class Pace(NamedTuple):
    """What fills the chain best for a number of decoding users."""

    in_flight: int
    """Steps with decode rows on their way at once."""
    rows: int
    """Decode rows in each of them."""


class Pacing:
    """Chooses the pace from the number of users.

    The users are dealt into m groups of equal size, each with one step on its way. A group's step comes back after
    the traversal of the chain, or after the slowest stage has run all m groups, whichever is longer. Without a table
    m is the number of stages. With one it is what gives the most tokens a second; kernels have cliffs, so that can be
    more groups than stages (two steps of 4 rows, where 8 rows cost more than twice as much), or fewer.

    Args:
        stages: Stages of the chain.
        step_times: Step-time table of the slowest stage, or None.
        link_ms: What a step spends on links and in the head, per round.
    """

    def __init__(self, stages: int, step_times: StepTimes | None = None, link_ms: float = 0.0) -> None:
        self._stages = stages
        table = sorted(step_times or ())
        self._times = list(zip((rows for rows, _ in table), monotone(time for _, time in table), strict=True))
        self._link_ms = link_ms
        self._paces: dict[int, Pace] = {}

    def pace(self, users: int) -> Pace:
        """The pace for this many decoding sequences."""
        if users not in self._paces:
            self._paces[users] = self._choose(users)
        return self._paces[users]

    def chunk(self, rows: int, most: int) -> int:
        """How many of a prompt's `rows` go into its next step, `most` at most, if it has the chain to itself.

        n equal chunks take the time of n + stages - 1 steps to the first token: more of them overlap better on the
        stages, and cost more in all.
        """
        if not self._times or self._stages == 1:
            return most
        fewest = _ceil(rows, most)
        counts = range(fewest, min(rows, fewest + 4 * self._stages) + 1)
        best = min(counts, key=lambda n: (n + self._stages - 1) * self.step_ms(_ceil(rows, n)))
        return _ceil(rows, best)

    def step_ms(self, rows: int) -> float:
        """Time of a step on the slowest stage: linear between measured points and beyond them."""
        times = self._times
        if len(times) == 1:
            return times[0][1]
        above = next((i for i, (measured, _) in enumerate(times) if measured >= rows), len(times) - 1)
        (r0, t0), (r1, t1) = times[max(above, 1) - 1], times[max(above, 1)]
        return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)

    def _choose(self, users: int) -> Pace:
        if not users or not self._times:
            return Pace(self._stages, _ceil(users, self._stages))
        usual = Pace(self._stages, _ceil(users, self._stages))
        # Twice the stages is as far as a cliff can push it: two half steps for each.
        paces = {Pace(m, _ceil(users, m)) for m in range(1, min(users, 2 * self._stages) + 1)}
        best = min(paces, key=lambda pace: (self._period_ms(pace), pace.in_flight))
        return best if self._period_ms(best) < _WORTHWHILE * self._period_ms(usual) else usual

    def _period_ms(self, pace: Pace) -> float:
        """Time in which every user gets one token."""
        step = self.step_ms(pace.rows)
        return max(pace.in_flight * step, self._stages * step + self._link_ms)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
