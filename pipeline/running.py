"""A model package, running on this computer: tokenizer, stages and head together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from pipeline.chain import Chain
from pipeline.head import Head
from pipeline.layout import RunOptions, lay_out
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.manifest import Manifest
from shards.progress import Progress, silent

__all__ = ["Copy", "RunOptions", "RunningModel"]


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """One copy of a model at work: a chain, and the head that drives it."""

    chain: Chain
    head: Head

    @classmethod
    def start(
        cls,
        chain: Chain,
        context_length: int,
        options: RunOptions,
        step_times: tuple[tuple[int, float], ...] | None,
        link_ms: float = 0.0,
    ) -> Self:
        """Give a chain its head; the chain is the copy's from here on, and is closed if that fails."""
        try:
            scheduler = Scheduler(
                SchedulerConfig(
                    kv_tokens=chain.kv_tokens,
                    block=chain.block,
                    context_length=context_length,
                    stages=len(chain.stages),
                    runs_ahead=True,
                    step_times=step_times,
                    link_ms=link_ms,
                    token_budget=options.token_budget,
                    max_sequences=options.max_sequences,
                    prefix_cache=options.prefix_cache,
                )
            )
            return cls(chain, Head(chain, scheduler))
        except BaseException:
            chain.close()
            raise

    def close(self) -> None:
        """Cancel what runs and end every process."""
        self.head.close()
        self.chain.close()


class RunningModel:
    """A model loaded on this computer. Make one with `open`; it is a context manager."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer, copy: Copy) -> None:
        self.manifest, self.tokenizer = manifest, tokenizer
        self.copies = (copy,)
        self.chain, self.head = copy.chain, copy.head

    @classmethod
    def open(cls, package: Path, options: RunOptions, progress: Progress = silent) -> Self:
        """Load a package.

        Raises:
            PackageError: the package cannot be read.
            ConfigurationError: the options do not suit the model.
            StageError: a stage could not load.
        """
        manifest = manifests.read(package)
        tokenizer = Tokenizer.load(package)
        with ExitStack() as stack:
            cache = options.cache or Path(stack.enter_context(TemporaryDirectory(prefix="edge-agent-")))
            layout = lay_out(package, manifest, options, cache, progress)
            chain = Chain.start(
                layout.stages,
                max_rows=options.token_budget,
                max_sequences=options.max_sequences,
                cache=cache,
                progress=progress,
            )
        return cls(manifest, tokenizer, Copy.start(chain, manifest.facts.context_length, options, layout.step_times))

    def close(self) -> None:
        """Cancel what runs and end every process."""
        self.copies[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
