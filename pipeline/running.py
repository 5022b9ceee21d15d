"""A model package, running on this computer: tokenizer, stages and head together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from pipeline.head import Head
from pipeline.layout import RunOptions, lay_out
from pipeline.local_chain import LocalChain
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.manifest import Manifest
from shards.progress import Progress, silent

__all__ = ["RunOptions", "RunningModel"]


class RunningModel:
    """A loaded model with its head. Make one with `open`; it is a context manager."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer, chain: LocalChain, head: Head) -> None:
        self.manifest, self.tokenizer, self.chain, self.head = manifest, tokenizer, chain, head

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
            chain = LocalChain.start(
                layout.stages,
                max_rows=options.token_budget,
                max_sequences=options.max_sequences,
                cache=cache,
                progress=progress,
            )
        try:
            scheduler = Scheduler(
                SchedulerConfig(
                    kv_tokens=chain.kv_tokens,
                    block=chain.block,
                    context_length=manifest.facts.context_length,
                    stages=len(layout.stages),
                    runs_ahead=True,
                    step_times=layout.step_times,
                    token_budget=options.token_budget,
                    max_sequences=options.max_sequences,
                    prefix_cache=options.prefix_cache,
                )
            )
            return cls(manifest, tokenizer, chain, Head(chain, scheduler))
        except BaseException:
            chain.close()
            raise

    def close(self) -> None:
        """Cancel what runs and end every process."""
        self.head.close()
        self.chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
