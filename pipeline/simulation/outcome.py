"""What a simulation saw: times of requests, steps and stages. All times are milliseconds of virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestTimes:
    """A request from its arrival to its end."""

    cohort: str
    prompt: int
    wanted: int
    """Tokens of the answer."""
    arrived: float
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    tokens: list[float] = field(default_factory=list)
    """When each token of the answer came."""
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step's way round."""

    rows: int
    sent: float
    back: float


@dataclass(slots=True)
class Outcome:
    """Everything that happened, in order."""

    requests: dict[str, RequestTimes]
    steps: list[StepTimes]
    busy: list[list[tuple[float, float]]]
    """Of each stage, when it computed: intervals that do not overlap, ascending."""
    kv_tokens: int
    """Tokens the KV cache holds."""
    kv_peak: int
    """Most tokens of it that were taken at once, what is kept for others to fork included."""
