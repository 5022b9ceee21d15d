"""What is known of a chain before it begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChainTimes:
    """How long its steps take."""

    table: tuple[tuple[int, float], ...] | None = None
    """Measured (rows, milliseconds) of the slowest stage."""
    link_ms: float = 0.0
    """What a step of one row spends outside the stages on its way round."""
    detour_ms: float | None = None
    """What a token's way from the tail by the head to the first stage takes longer than the tail's word to that stage;
    None: not known."""
