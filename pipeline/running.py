"""A model package, running on this computer: tokenizer, stages and head together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field

from pipeline.head import Head
from pipeline.local_chain import LocalChain
from pipeline.scheduler import Scheduler, SchedulerConfig
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.balance import Costs, balance
from shards.errors import ConfigurationError
from shards.manifest import Manifest
from shards.progress import Progress, silent
from shards.runtime import EngineName, Mode, StageConfig


class RunOptions(BaseModel):
    """How to run a package."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: int = Field(1, gt=0, description="processes to divide the model over")
    split: tuple[int, ...] | None = Field(None, description="layers of each stage; None: dealt by their bytes")
    engine: EngineName = "openvino-paged"
    mode: Mode = "fast"
    device: str = "CPU"
    threads: int | None = Field(
        None, gt=0, description="inference threads a stage; None: the processor cores divided by the stages"
    )
    cores: tuple[tuple[int, ...], ...] | None = Field(None, description="processor numbers each stage is pinned to")
    kv_tokens: int = Field(8192, gt=0, description="tokens the KV cache holds, all sequences together")
    token_budget: int = Field(SchedulerConfig.token_budget, gt=0, description="most rows of a step")
    max_sequences: int = Field(SchedulerConfig.max_sequences, gt=0, description="most sequences at once")
    prefix_cache: bool = SchedulerConfig.prefix_cache
    tune: bool = Field(True, description="in fast mode, look for the fastest device properties at load")
    cache: Path | None = Field(None, description="folder for what tuning finds; None: it is found again at each load")


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
        configs = stage_configs(package, manifest, options)
        tokenizer = Tokenizer.load(package)
        chain = LocalChain.start(
            configs,
            max_rows=options.token_budget,
            max_sequences=options.max_sequences,
            cache=options.cache,
            progress=progress,
        )
        try:
            scheduler = Scheduler(
                SchedulerConfig(
                    kv_tokens=chain.kv_tokens,
                    block=chain.block,
                    context_length=manifest.facts.context_length,
                    stages=len(configs),
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


def stage_configs(package: Path, manifest: Manifest, options: RunOptions) -> list[StageConfig]:
    """The stages that options ask for.

    Raises:
        ConfigurationError: split or cores do not suit the model or one another; more stages than layers.
    """
    edges = _edges(manifest, options)
    stages = len(edges) - 1
    if options.cores is not None and len(options.cores) != stages:
        raise ConfigurationError(f"{len(options.cores)} sets of cores for {stages} stages", where="cores")
    threads = options.threads
    if threads is None and options.cores is None and stages > 1:
        threads = max(1, (psutil.cpu_count(logical=False) or 1) // stages)
    return [
        StageConfig(
            package=package.resolve(),
            first_layer=first,
            end_layer=end,
            engine=options.engine,
            device=options.device,
            mode=options.mode,
            threads=threads,
            cores=options.cores[i] if options.cores else None,
            kv_tokens=options.kv_tokens,
            tune=options.tune,
        )
        for i, (first, end) in enumerate(pairwise(edges))
    ]


def _edges(manifest: Manifest, options: RunOptions) -> tuple[int, ...]:
    if options.split is None:
        return balance(Costs.of_bytes(manifest.spans), options.stages)
    if min(options.split, default=0) < 1 or sum(options.split) != manifest.facts.layers:
        raise ConfigurationError(
            f"{', '.join(map(str, options.split))} layers make {sum(options.split)}, "
            f"the model has {manifest.facts.layers}",
            where="split",
            hint="Give each stage at least one layer, and all layers together.",
        )
    return tuple(sum(options.split[:i]) for i in range(len(options.split) + 1))
