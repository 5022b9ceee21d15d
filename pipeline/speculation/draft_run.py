"""How a draft model runs, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.chain import Chain, StartStage, start_here
from pipeline.link import Peer
from pipeline.stages import LOOPBACK
from shards.progress import Progress, silent
from shards.runtime import Mode, StageConfig

PATIENCE_MS = 200.0
"""An answer waits at least so long for guesses that are being made."""

STALL_SECONDS = 30.0
"""A step that takes longer than this is taken for lost, and the draft with it."""


@dataclass(frozen=True, slots=True)
class DraftSite:
    """Where a draft model runs, and how it and the head reach each other; see Chain.start. By default: here."""

    start_stage: StartStage = start_here
    interface: str = LOOPBACK
    head_host: str = LOOPBACK
    locate: Callable[[Peer], Peer] = lambda peer: peer
    device: str = "CPU"
    threads: int | None = 1
    """Inference threads: the others are the model's that is served. None: whoever runs it chooses."""
    background: bool = True
    """Whether that one is the model's, too, when its stages want it."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """How a draft model runs. What it computes changes no answer."""

    kv_tokens: int
    """Tokens its KV cache holds, all texts together."""
    max_rows: int
    """Most rows of a step."""
    max_sequences: int
    """Most texts of a step."""
    mode: Mode = "fast"
    tune: bool = True
    """In fast mode, measure what is fastest."""
    cache: Path | None = None
    """Folder for what tuning finds."""
    patience_ms: float = PATIENCE_MS
    """An answer waits at least so long for guesses that are being made."""
    stall_seconds: float = STALL_SECONDS
    """A step that takes longer is taken for lost."""
    site: DraftSite = DraftSite()

    def start_chain(self, package: Path, layers: int, progress: Progress = silent) -> Chain:
        """A chain of one stage with all layers of a package.

        Raises:
            StageError: it could not load.
        """
        config = StageConfig(
            package=package.resolve(),
            first_layer=0,
            end_layer=layers,
            mode=self.mode,
            device=self.site.device,
            threads=self.site.threads,
            background=self.site.background,
            kv_tokens=self.kv_tokens,
            tune=self.tune,
        )
        return Chain.start(
            [config],
            max_rows=self.max_rows,
            max_sequences=self.max_sequences,
            start_stage=self.site.start_stage,
            interface=self.site.interface,
            head_host=self.site.head_host,
            locate=self.site.locate,
            cache=self.cache,
            progress=progress,
        )
