"""How a scheduler speculates."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.speculation.drafter import MAX_GUESSES
from shards.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Settings of speculation; the drafter comes beside them."""

    draft_tokens: int | None = None
    """Guesses that are verified in a step, of each sequence; None: as many as pay."""
    asynchronous: bool = True
    """Whether guesses are sent behind others that are not confirmed yet, where the chain would be idle."""

    def __post_init__(self) -> None:
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= MAX_GUESSES:
            raise ConfigurationError(
                f"{self.draft_tokens} guesses in a step, from 1 to {MAX_GUESSES} are possible", where="draft_tokens"
            )
