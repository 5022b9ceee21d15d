"""What a simulation comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeline.simulation.outcome import Outcome, RequestTimes


@dataclass(frozen=True, slots=True)
class Measures:
    """Speed, as the users see it. Rates are tokens a second; None where there is nothing to measure."""

    requests: int
    tokens: int
    seconds: float
    """From the first arrival to the last end."""
    phase: float
    """All tokens over all that time."""
    decode: float | None
    """Over the stretch in which every request decodes: from the last first token to the first end."""
    first_p50_ms: float
    first_p95_ms: float
    first_p99_ms: float
    """From a request's arrival to its first token."""
    between_p50_ms: float | None
    between_p95_ms: float | None
    between_p99_ms: float | None
    """Between two tokens of an answer."""

    @classmethod
    def of(cls, requests: Collection[RequestTimes]) -> Measures:
        """The measures of requests that have ended."""
        came = np.sort([time for request in requests for time in request.tokens])
        begin = min(request.arrived for request in requests)
        seconds = (max(request.ended or 0.0 for request in requests) - begin) / 1e3
        start = max(request.tokens[0] for request in requests)
        stretch = min(request.tokens[-1] for request in requests) - start
        decoded = int(np.searchsorted(came, start + stretch, "right") - np.searchsorted(came, start, "right"))
        first = _percentiles(request.tokens[0] - request.arrived for request in requests)
        gaps = _percentiles(b - a for request in requests for a, b in pairwise(request.tokens))
        return cls(
            len(requests),
            len(came),
            seconds,
            len(came) / seconds,
            1e3 * decoded / stretch if stretch > 0 else None,
            *(first or (0.0, 0.0, 0.0)),
            *(gaps or (None, None, None)),
        )


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage did from the first arrival to the last end: parts of that time; the rest all stages were idle."""

    busy: float
    bubble: float
    """Idle while another stage was busy."""


def stage_use(outcome: Outcome) -> list[StageUse]:
    """What each stage did."""
    begin = min(request.arrived for request in outcome.requests.values())
    span = max(request.ended or 0.0 for request in outcome.requests.values()) - begin
    any_busy = _union_ms(interval for stage in outcome.busy for interval in stage)
    uses = []
    for stage in outcome.busy:
        busy = sum(end - start for start, end in stage)
        uses.append(StageUse(busy / span, max(0.0, any_busy - busy) / span))
    return uses


def steps_by_rows(outcome: Outcome) -> dict[int, int]:
    """How many steps had how many rows; those that carried operations alone are left out."""
    return dict(sorted(Counter(step.rows for step in outcome.steps if step.rows).items()))


def _union_ms(intervals: Iterable[tuple[float, float]]) -> float:
    total, covered = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return total


def _percentiles(values: Iterable[float]) -> tuple[float, float, float] | None:
    """p50, p95 and p99."""
    array = np.fromiter(values, np.float64)
    if not array.size:
        return None
    p50, p95, p99 = np.percentile(array, (50, 95, 99))
    return float(p50), float(p95), float(p99)
