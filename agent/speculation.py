"""What a head's guesses have come to, for /fleet."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.snapshots import HeadSnapshot


def told(snapshot: HeadSnapshot) -> dict[str, Any] | None:
    """The drafter, whether and why it is off, and what became of its guesses; None if there is none."""
    if snapshot.drafter is None:
        return None
    sent, right = snapshot.scheduler.sent_guesses, snapshot.scheduler.right_guesses
    drafter, step_ms = asdict(snapshot.drafter), snapshot.times.traversal / 1e3
    if drafter["off"] is None and 0 < step_ms < drafter["guess_ms"]:
        drafter["off"] = f"too slow to pay: a guess takes {drafter['guess_ms']:.1f} ms, a step {step_ms:.1f} ms"
    return drafter | {"sent": sent, "right": right, "acceptance": right / sent if sent else None}
