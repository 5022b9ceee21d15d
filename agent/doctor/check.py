"""What the doctor says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line: a fault keeps something from working, a warning makes it slow or unsure."""

    topic: str
    status: Status
    what: str
    next_step: str | None = None
    """What the reader can do about it."""
