"""A step on its way down the chain, as the scheduler remembers it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.sequence import Sequence
from pipeline.step_times import StepShape


@dataclass(slots=True)
class Sent:
    """Rows of a sequence in a step."""

    sequence: Sequence
    id: int
    """Its name then: a replay has another."""
    end: int
    """Tokens of it that are cached when the step is done."""
    is_sampled: bool
    branch: int = -1
    """Of rows that are guesses; -1 if they are none."""


@dataclass(slots=True)
class Flight:
    """A step in flight."""

    parts: list[Sent]
    has_answers: bool
    """Whether anything is sampled in it."""
    shape: StepShape
    time: float
    """When it was sent, in seconds."""
    has_guesses: bool = False
    """Whether there are guesses in it."""
    follows: bool = False
    """Whether all its rows are guesses, behind others that were being verified."""
