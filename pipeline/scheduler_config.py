"""What a scheduler is told of its chain."""

from __future__ import annotations

from dataclasses import dataclass

from shards.errors import ConfigurationError


@dataclass(frozen=True)
class SchedulerConfig:
    """What the chain can hold, and how it is driven."""

    kv_tokens: int
    """Tokens the smallest KV cache of the chain holds."""
    block: int
    """Tokens of the chain's largest KV block; a multiple of the other stages'."""
    context_length: int
    """Tokens the model can attend to, prompt and answer."""
    stages: int = 1
    token_budget: int = 128
    """Most rows in a step: bounds the pause that a long prompt causes to everyone else."""
    max_sequences: int = 64
    """Most sequences that run at once (never more than the token budget, so that each can have its row)."""
    prefix_cache: bool = True
    runs_ahead: bool = False
    """Whether the chain fills in tokens that the head has not seen yet, so that a step can follow another at once."""
    step_times: tuple[tuple[int, float], ...] | None = None
    """Measured (rows, milliseconds) of the slowest stage; see `Pacing`."""
    link_ms: float = 0.0
    """What a step spends outside the stages on its way round."""
    ageing: float = 0.1
    """Priority levels that a second of waiting is worth."""

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block", "context_length", "stages", "token_budget", "max_sequences"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{getattr(self, name)} is less than 1", where=name)
        if self.kv_tokens < self.block:
            raise ConfigurationError(
                f"a KV cache of {self.kv_tokens} tokens is smaller than one block of {self.block}", where="kv_tokens"
            )
