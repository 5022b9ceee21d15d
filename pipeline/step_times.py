"""How long steps take: measured before the chain began, and learnt from the steps that it does. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from statistics import median
from typing import NamedTuple

from pipeline.messages import StageTiming
from pipeline.monotone import monotone

StepTable = Sequence[tuple[int, float]]
"""(rows, milliseconds) of steps of the chain's slowest stage, one row a sequence."""

_REFRESH = 32
"""Steps of answers from one look at what they took to the next."""
_WINDOW = 15
"""Steps of a number of rows that count, the latest."""
_ENOUGH = 3
"""So few can't be outliers all."""
_GIVEN = 5
"""As many steps of a number of rows as what the given table says of it counts for."""
_MOVED = 0.1
"""By this part a time must have moved before anybody is told."""

_LEAST_MS = 1e-3
"""Nothing takes less."""

_PROMPT_WINDOW = 16
"""Steps with prompt rows that tell what context costs, the latest."""
_RECENT = 5
"""Those of them that tell what a row costs now."""
_FEW_ROWS = 8
"""With fewer prompt rows than this a step says more about its noise than about them."""
_LEAST_SHARE = 0.25
"""A prompt row adds at least this part of its share of the step; if less, too much is thought of the answers in it."""
_FAR = 256
"""Tokens of context that two steps must lie apart to tell what context costs."""

_computed = attrgetter("compute")


class StepShape(NamedTuple):
    """What a step is made of, as far as its time goes."""

    answers: int
    """Answer rows: one a sequence."""
    prompt: int
    """Prompt rows."""
    context: float
    """Tokens before a prompt row, on the average."""


class StepTimes:
    """What a step takes on the slowest stage, and what the chain adds to it.

    **Answer rows**: a table by the number of rows, because kernels have cliffs. Its points are the medians of the
    latest steps of each number; what was given counts for a few of them. What changes all of them (longer contexts, a
    processor that gets warm, other load) is seen at the numbers that come, and of the others when they come: to scale
    these along would let a wrong point bend the others, so that it looked right and was never left.

    **Prompt rows**: the milliseconds that each adds to a step. They grow with the tokens before it, and are taken to
    lie on a line, the one of Theil and Sen (Sen 1968) through the latest steps with prompt rows.

    Medians, so that one slow step does nothing. What is told of answer rows changes only once it has moved by a tenth,
    which `version` counts; those who decided by it need not decide anew before.

    Args:
        table: Measured before, or None.
        link_ms: What a step spends outside the stages on its way round.
        stages: Of the chain.
        detour_ms: See `ChainTimes`.
    """

    def __init__(
        self, table: StepTable | None = None, link_ms: float = 0.0, stages: int = 1, detour_ms: float | None = None
    ) -> None:
        self.version = 0
        self._stages, self._detour_ms = stages, detour_ms
        self.link_ms = link_ms
        """What a step spends outside the stages on its way round: links and head."""
        self.depth = float(stages)
        """How many times the slowest stage's time all stages take together."""
        self._known = dict(table or ())
        self._windows: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))
        for rows, ms in self._known.items():
            self._windows[rows].extend([ms] * _GIVEN)
        self._changes: deque[float] = deque(maxlen=_WINDOW)
        """Milliseconds that steps took longer for another number of rows than the one before them."""
        self._change_ms = 0.0
        """Their median."""
        self._rows = 0
        """That the slowest stage computed in the latest step of answers."""
        self._seen: list[tuple[int, float, float, float]] = []
        """Of the steps since the last look: (rows, milliseconds, depth, link)."""
        self._points = self._table()
        self._prompt_rows = _PromptRows(_last_slope(self._points))

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """(rows, milliseconds) of answer rows, as they are known; empty before anything is."""
        return tuple(self._points)

    @property
    def detour_ms(self) -> float:
        """What a token's way by the head to the first stage takes longer than the tail's word to that stage."""
        return self.link_ms / (self._stages + 1) if self._detour_ms is None else self._detour_ms

    def way_ms(self, step: float) -> float:
        """A step's way round, if it takes so long on the slowest stage and nobody is before it."""
        return self.depth * step + self.link_ms

    def round_ms(self, in_flight: int, rows: int) -> float:
        """Time until each of so many steps of answers is back, if they leave one after the other."""
        step = self.answers_ms(rows)
        return max(in_flight * step, self.way_ms(step))

    def answers_ms(self, rows: int) -> float:
        """A step of so many answer rows, linear between and beyond the known points; 0 before anything is known."""
        return _interpolated(self._points, rows) if self._points else 0.0

    def change_ms(self, rows: int) -> float:
        """What a step of so many answer rows takes longer for being larger than the one before it.

        One that is smaller may be filled up, and its stage knows best.
        """
        return self._change_ms if rows > self._rows else 0.0

    def prompt_row_ms(self, context: float) -> float | None:
        """What a prompt row with so many tokens before it adds to a step; None before anything is known."""
        return self._prompt_rows.at(context)

    def step_ms(self, answers: int, prompt: int, context: float) -> float:
        """A step of answer rows and of `prompt` rows that follow `context` tokens."""
        return self.shape_ms(StepShape(answers, prompt, context + prompt / 2))

    def shape_ms(self, shape: StepShape) -> float:
        """A step of a known shape."""
        added = shape.prompt * (self._prompt_rows.at(shape.context) or 0.0) if shape.prompt else 0.0
        return self.answers_ms(max(1, shape.answers)) + added

    def observe(self, shape: StepShape, timings: Sequence[StageTiming], round_ms: float) -> None:
        """Learn from a step that was done, whose result came `round_ms` after it was sent."""
        if not timings:
            return
        longest = max(timings, key=_computed)
        slowest = 1e-3 * (longest.compute - longest.change)
        if slowest < _LEAST_MS:
            return
        # A stage may have filled it up: else a step of few rows would seem to take as long as those before it.
        rows = longest.rows or shape.answers + shape.prompt
        if not shape.prompt:
            work = 1e-3 * sum([timing.compute - timing.change for timing in timings])
            link = round_ms - 1e-3 * sum([timing.queued + timing.compute for timing in timings])
            self._seen.append((rows, slowest, work / slowest, link))
            self._rows = rows
            if longest.change:
                self._changes.append(1e-3 * longest.change)
                self._change_ms = median(self._changes)
            if len(self._seen) == _REFRESH:
                self._look()
        elif shape.prompt >= _FEW_ROWS:  # chunks hardly ever have the size of those before
            whole = 1e-3 * longest.compute
            added = (whole - self.answers_ms(max(1, shape.answers))) / max(1, rows - shape.answers)
            self._prompt_rows.add(shape.context, max(added, _LEAST_SHARE * whole / rows))

    def _look(self) -> None:
        """See what the latest steps of answers have taken."""
        seen, self._seen = self._seen, []
        for rows, ms, _, _ in seen:
            self._windows[rows].append(ms)
        for rows in {rows for rows, _, _, _ in seen}:
            if len(window := self._windows[rows]) >= _ENOUGH:
                self._known[rows] = median(window)
        points = self._table()
        depth, link = median(depth for _, _, depth, _ in seen), median(link for _, _, _, link in seen)
        if points and self._has_moved(points, depth, link):
            self._points, self.depth, self.link_ms = points, depth, max(0.0, link)
            self.version += 1

    def _has_moved(self, points: StepTable, depth: float, link: float) -> bool:
        if not self._points:
            return True
        shortest = points[0][1]
        return abs((depth - self.depth) * shortest + link - self.link_ms) > _MOVED * shortest or any(
            abs(ms - self.answers_ms(rows)) > _MOVED * ms for rows, ms in points
        )

    def _table(self) -> list[tuple[int, float]]:
        rows = sorted(self._known)
        times = monotone(self._known[count] for count in rows)
        return list(zip(rows, times, strict=True))


class _PromptRows:
    """Milliseconds of a prompt row by the tokens before it.

    Args:
        base: Of one without any, until it is learnt.
    """

    def __init__(self, base: float | None) -> None:
        self._base, self._slope = base, 0.0
        self._seen: deque[tuple[float, float]] = deque(maxlen=_PROMPT_WINDOW)
        self._added = 0

    def at(self, context: float) -> float | None:
        return None if self._base is None else max(_LEAST_MS, self._base + self._slope * context)

    def add(self, context: float, ms: float) -> None:
        self._seen.append((context, ms))
        if self._base is not None and len(self._seen) < _ENOUGH:
            return
        self._added += 1
        if self._added % _ENOUGH == 0:  # it moves slowly, and looking takes time
            slopes = list(_slopes(self._seen))
            if len(slopes) >= 2 * _ENOUGH:
                self._slope = max(0.0, median(slopes))
        self._base = median(ms - self._slope * context for context, ms in islice(reversed(self._seen), _RECENT))


def _slopes(points: Iterable[tuple[float, float]]) -> Iterable[float]:
    """Between every two points that lie far apart."""
    ordered = sorted(points)
    for i, (x0, y0) in enumerate(ordered):
        for x1, y1 in ordered[i + 1 :]:
            if x1 - x0 >= _FAR:
                yield (y1 - y0) / (x1 - x0)


def _interpolated(points: StepTable, rows: int) -> float:
    if rows <= points[0][0] or len(points) == 1:
        return points[0][1]
    above = min(bisect_left(points, rows, key=itemgetter(0)), len(points) - 1)
    (r0, t0), (r1, t1) = points[above - 1 : above + 1]
    return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)


def _last_slope(points: StepTable) -> float | None:
    if len(points) < 2:
        return None
    (r0, t0), (r1, t1) = points[-2:]
    return (t1 - t0) / (r1 - r0)
