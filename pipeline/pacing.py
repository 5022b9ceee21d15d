"""How many steps travel down the chain at once, and how many answer rows a step takes."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from pipeline.step_times import StepTimes

_WORTHWHILE = 0.9
"""Another pace must take less than this part of the usual one's time, or of the one's in force: times lie a bit."""


class Pace(NamedTuple):
    """What fills the chain best for a number of users whose answers are being written."""

    in_flight: int
    """Steps with answer rows on their way at once."""
    rows: int
    """Answer rows in each of them."""


class Pacing:
    """Chooses the pace from the number of users.

    The users are dealt into m groups of equal size, each with one step on its way. A group's step comes back after
    the traversal of the chain, or after the slowest stage has run all m groups, whichever is longer. While no times
    are known m is the number of stages. Then it is what gives the most tokens a second: kernels have cliffs, so that
    can be more groups than stages (two steps of 4 rows, where 8 rows cost more than twice as much), or fewer; and
    where the way round is long, as many as fill it.

    A pace stays until another is clearly better by times that have moved, or the usual one is better at all.
    """

    def __init__(self, stages: int, times: StepTimes) -> None:
        self._stages, self._times = stages, times
        self._paces: dict[int, tuple[int, Pace]] = {}
        """Of each number of users: the version of the times it was chosen by, and what was chosen."""

    def pace(self, users: int) -> Pace:
        """The pace for so many users."""
        version, pace = self._paces.get(users, (-1, None))
        if pace is None or version != self._times.version:
            pace = self._choose(users, pace)
            self._paces[users] = self._times.version, pace
        return pace

    @property
    def filling(self) -> int:
        """Steps of one answer that fill the whole way round."""
        step = self._times.answers_ms(1)
        return self._stages if step <= 0 else self._stages + round(self._times.link_ms / step)

    @property
    def is_far(self) -> bool:
        """Whether a step of one answer is longer on the links than in a stage."""
        return self._times.link_ms > self._times.answers_ms(1) > 0

    def _choose(self, users: int, former: Pace | None) -> Pace:
        groups = max(1, min(users, self._stages))
        usual = Pace(groups, -(-users // groups))
        shortest = self._times.answers_ms(1)
        if not users or shortest <= 0:
            return usual
        # Twice the stages is as far as a cliff can push it: two half steps for each.
        most = 2 * self._stages + ceil(self._times.link_ms / shortest)
        # Of those with steps of one size, the one of the fewest steps.
        fewest = {-(-users // m): m for m in range(min(users, most), 0, -1)}
        best = min((Pace(m, rows) for rows, m in fewest.items()), key=lambda pace: (self._period_ms(pace), pace))
        current = usual
        if former is not None and self._period_ms(former) < self._period_ms(usual):
            current = former
        return best if self._period_ms(best) < _WORTHWHILE * self._period_ms(current) else current

    def _period_ms(self, pace: Pace) -> float:
        """Time in which every user gets one token."""
        return self._times.round_ms(pace.in_flight, pace.rows)
