"""How a package is laid out over stages of this computer: options, layers of each stage, what a step then takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.chain_times import ChainTimes
from pipeline.measuring import cost_profile
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.draft_choice import NONE
from pipeline.speculation.draft_run import PATIENCE_MS, DraftRun
from pipeline.speculation.drafter import MAX_GUESSES
from shards.balance import Costs, balance
from shards.edges import Edge, layers_between
from shards.errors import ConfigurationError
from shards.kv_cache import kv_precision
from shards.manifest import Manifest
from shards.profile import CostProfile
from shards.progress import Progress
from shards.runtime import EngineName, KvPrecision, Mode, StageConfig

_LEAST_MEASURED = 4
"""Layers of a model that can be measured in parts."""


class RunOptions(BaseModel):
    """How to run a package."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: int = Field(1, gt=0, description="processes to divide the model over")
    split: tuple[int, ...] | None = Field(
        None, description="layers of each stage; None: dealt so that all take the same time"
    )
    engine: EngineName = "openvino-paged"
    mode: Mode = "fast"
    device: str = "CPU"
    threads: int | None = Field(
        None, gt=0, description="inference threads a stage; None: the processor cores divided by the stages"
    )
    cores: tuple[tuple[int, ...], ...] | None = Field(None, description="processor numbers each stage is pinned to")
    kv_tokens: int = Field(8192, gt=0, description="tokens the KV cache holds, all sequences together")
    kv_precision: KvPrecision | None = Field(
        None, description="what keys and values are kept in; None: u8 in fast mode, f32 in exact mode"
    )
    target_tbt_ms: float | None = Field(
        SchedulerConfig.target_tbt_ms,
        gt=0,
        description="wanted longest time between two tokens of an answer while prompts are worked on; None: no matter",
    )
    max_waiting: int = Field(SchedulerConfig.max_waiting, gt=0, description="most requests that wait; more are refused")
    token_budget: int = Field(SchedulerConfig.token_budget, gt=0, description="most rows of a step")
    max_sequences: int = Field(SchedulerConfig.max_sequences, gt=0, description="most sequences at once")
    prefix_cache: bool = SchedulerConfig.prefix_cache
    draft: str = Field(
        NONE, description="what guesses how answers go on: none, ngram, auto (ngram), or the package of a draft model"
    )
    draft_tokens: int | None = Field(
        None, ge=1, le=MAX_GUESSES, description="guesses checked in a step, of each answer; None: as many as pay"
    )
    draft_patience_ms: float = Field(
        PATIENCE_MS, gt=0, description="an answer waits at least so long for guesses of a draft model"
    )
    asynchronous: bool = Field(True, description="whether guesses are sent behind others that are not confirmed yet")
    capture: bool = Field(False, description="whether the tail can send hidden states to who records them")
    tune: bool = Field(True, description="in fast mode, measure what is fastest on this machine at load")
    cache: Path | None = Field(None, description="folder for what is measured; None: it is measured again at each load")

    @model_validator(mode="after")
    def _precision_suits_mode(self) -> Self:
        kv_precision(self.mode, self.kv_precision)
        return self

    def draft_run(self, cache: Path | None) -> DraftRun:
        """How a draft model runs beside this one."""
        return DraftRun(
            self.kv_tokens,
            self.token_budget,
            self.max_sequences,
            tune=self.tune,
            cache=cache,
            patience_ms=self.draft_patience_ms,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages, and what is known of their times."""

    stages: tuple[StageConfig, ...]
    times: ChainTimes


def lay_out(package: Path, manifest: Manifest, options: RunOptions, cache: Path, progress: Progress) -> Layout:
    """Deal the layers to the stages that options ask for: in fast mode by measurement, otherwise by bytes.

    By measurement an edge may be within a layer where the engine allows it; by bytes, or as given, it never is.

    Raises:
        ConfigurationError: split or cores do not suit the model or one another; more stages than layers.
        StageError: the measurement failed.
        PackageError: the package has nothing for the engine.
    """
    count = len(options.split) if options.split else options.stages
    depth = manifest.facts.layers
    if options.cores is not None and len(options.cores) != count:
        raise ConfigurationError(f"{len(options.cores)} sets of cores for {count} stages", where="cores")
    like = StageConfig(
        package=package.resolve(),
        first_layer=0,
        end_layer=depth,
        engine=options.engine,
        device=options.device,
        mode=options.mode,
        threads=_threads(options, count),
        cores=options.cores[0] if options.cores else None,
        kv_tokens=options.kv_tokens,
        kv_precision=options.kv_precision,
        tune=options.tune,
    )
    profile: CostProfile | None = None
    if options.mode == "fast" and options.tune and 1 < count <= depth and depth >= _LEAST_MEASURED:
        profile = cost_profile(like, manifest, cache, progress)
    costs = profile.costs(depth, count) if profile else (Costs.of_bytes(manifest.spans_for(options.engine)),)
    edges = _given_edges(options.split, depth) if options.split else balance(costs, options.stages)
    cores = options.cores or (None,) * count
    stages = tuple(
        like.model_copy(update={**layers_between(begin, end), "cores": own})
        for (begin, end), own in zip(pairwise(edges), cores, strict=True)
    )
    if options.capture:
        stages = (*stages[:-1], stages[-1].model_copy(update={"capture": True}))
    return Layout(stages, ChainTimes(profile.step_times(edges) if profile else None))


def _threads(options: RunOptions, stages: int) -> int | None:
    if options.threads is not None or options.cores is not None or stages == 1:
        return options.threads
    return max(1, (psutil.cpu_count(logical=False) or 1) // stages)


def _given_edges(split: tuple[int, ...], depth: int) -> tuple[Edge, ...]:
    if min(split) < 1 or sum(split) != depth:
        raise ConfigurationError(
            f"{', '.join(map(str, split))} layers make {sum(split)}, the model has {depth}",
            where="split",
            hint="Give each stage at least one layer, and all layers together.",
        )
    return (0, *accumulate(split))
