"""What a scheduler is told of its chain."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.speculation.config import SpeculationConfig
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
    token_budget: int = 512
    """Most rows in a step, whatever the target time allows."""
    max_sequences: int = 64
    """Most sequences that run at once (never more than the token budget, so that each can have its row)."""
    prefix_cache: bool = True
    kept_sequences: int | None = None
    """Most sequences that the stages can hold at once, running ones among them; None: as many as there is room for."""
    runs_ahead: bool = False
    """Whether the chain fills in tokens that the head has not seen yet, so that a step can follow another at once."""
    step_times: tuple[tuple[int, float], ...] | None = None
    """Measured (rows, milliseconds) of the slowest stage, where `StepTimes` begins."""
    link_ms: float = 0.0
    """What a step spends outside the stages on its way round; where it begins, too."""
    detour_ms: float | None = None
    """See `ChainTimes`."""
    target_tbt_ms: float | None = 150.0
    """Wanted longest time between two tokens of an answer while prompts are worked on; None: only the budget counts."""
    mixed: bool = True
    """Whether prompt rows and answer rows share steps; False is for comparisons."""
    max_waiting: int = 256
    """Most requests that wait; more are refused."""
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    """How guesses are used, where there is a drafter."""
    ageing: float = 0.1
    """Priority levels that a second of waiting is worth."""

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block", "context_length", "stages", "token_budget", "max_sequences", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{getattr(self, name)} is less than 1", where=name)
        if self.target_tbt_ms is not None and not self.target_tbt_ms > 0:
            raise ConfigurationError(f"{self.target_tbt_ms:g} ms is no time to aim at", where="target_tbt_ms")
        if self.kept_sequences is not None and self.kept_sequences <= self.max_sequences:
            raise ConfigurationError(
                f"{self.max_sequences} sequences are to run at once, the stages hold {self.kept_sequences} and one of"
                " these is for what changes",
                where="max_sequences",
                hint=f"Ask for at most {self.kept_sequences - 1}.",
            )
        if self.kv_tokens < self.block:
            raise ConfigurationError(
                f"a KV cache of {self.kv_tokens} tokens is smaller than one block of {self.block}", where="kv_tokens"
            )
