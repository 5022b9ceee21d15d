"""Where the steps in flight are on their way round a chain: an estimate from their ages. Pure.

A way round is 2n legs for n stages: stage 0, link 0, stage 1, ... and the last link, back to the head. A round takes
milliseconds and the screen is told of it twice a second, so it is drawn slowed: the marks keep the distances that the
steps had in the newest state, and move at the pace at which a round takes some seconds. Rounds that take longer than
that by themselves are drawn as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tui.client.state import Chain

ROUND_MS = 3000.0
"""The least that a round takes on the screen."""
_SHORTEST_MS = 1e-3
"""What is shorter is not known."""
_LEAST_PART = 0.02
"""Of a round, for a leg of which nothing is known or that takes next to nothing: else its marks are never seen."""

Position = tuple[int, float]
"""A leg, and the part of it that is behind the step: 0 to 1."""


@dataclass(frozen=True, slots=True)
class Round:
    """How long a step's way round takes, and when in it each leg ends."""

    milliseconds: float
    ends: tuple[float, ...]
    """As parts of the round; the last one is 1."""

    @property
    def slowed(self) -> float:
        """How many times slower than it is a round is drawn."""
        return max(ROUND_MS / self.milliseconds, 1.0)

    def position(self, phase: float) -> Position:
        """Where a step is after a part of the round."""
        phase = min(max(phase, 0.0), 1.0)
        start = 0.0
        for leg, end in enumerate(self.ends):
            if phase < end:
                return leg, (phase - start) / (end - start)
            start = end
        return len(self.ends) - 1, 1.0


def round_of(chain: Chain) -> Round:
    """A chain's round; legs of which nothing is known are taken to be equal."""
    stages = [
        (times.queued + times.compute + times.send) / 1000 if (times := stage.microseconds) else 0.0
        for stage in chain.stages
    ]
    total = chain.traversal_ms or 0.0
    if total <= 0:
        total = sum(stages) + chain.microseconds.wire / 1000
    count = len(stages)
    if total < _SHORTEST_MS or not count:
        return Round(ROUND_MS, tuple((leg + 1) / (2 * count) for leg in range(2 * count)) or (1.0,))
    if not sum(stages):
        stages = [total / 2 / count] * count
    link = max(total - sum(stages), 0.0) / count
    legs = [max(leg, _LEAST_PART * total / count) for stage in stages for leg in (stage, link)]
    ends = [end / sum(legs) for end in accumulate(legs)]
    return Round(total, (*ends[:-1], 1.0))


def phases(chain: Chain, round_: Round) -> list[float]:
    """How far round each step in flight was when the state was made, oldest first; a late one has all but arrived."""
    return [min(max(step.age_ms, 0.0) / round_.milliseconds, 0.999) for step in chain.steps]


def symbols(chain: Chain) -> list[str]:
    """A mark for each step: `●`, or `◆` where it carries more than a token a sequence (a prompt's chunk)."""
    return ["◆" if step.rows > max(step.sequences, 1) else "●" for step in chain.steps]


def shift(shown: Sequence[float], new: Sequence[float]) -> float:
    """By how much all new phases are to be moved, so that marks on the screen go on from where they are."""
    if not shown or not new:
        return 0.0

    def jump(by: float) -> float:
        return sum(min(_distance(old, phase + by) for phase in new) for old in shown)

    return min(((old - new[0]) % 1.0 for old in shown), key=jump)


def drawn(phases_: Sequence[float], round_: Round, shift_: float, elapsed: float) -> list[float]:
    """The phases to draw `elapsed` seconds after the state was made."""
    by = elapsed * 1000 / (round_.milliseconds * round_.slowed)
    if round_.slowed > 1.0:
        return [(phase + shift_ + by) % 1.0 for phase in phases_]
    return [min(phase + by, 1.0) for phase in phases_]


def _distance(one: float, other: float) -> float:
    apart = abs(one - other) % 1.0
    return min(apart, 1.0 - apart)
