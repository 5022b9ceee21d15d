"""What the parts of a model cost on a device of this machine, measured on the real package. Imports OpenVINO late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from shards.balance import Costs
from shards.errors import ConfigurationError
from shards.progress import Progress, silent
from shards.runtime import EngineName, Mode, StageConfig, StageRuntime
from shards.store import PackageStore
from shards.timing import kv_tokens, step_times

ROWS = (1, 2, 4, 8, 16, 64)
"""Kernels have cliffs, most of them between 4 and 8 rows."""

_ROUNDS = 5
_MOST_USUAL_ROWS = 16
_SEVERAL = 4
_LEAST_PART = 0.1
"""What a layer takes at least, of its share of a step through several: the rest of a step is not so much."""


class CostProfile(BaseModel):
    """Milliseconds of a decode step's parts, at each of `rows` numbers of sequences."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    engine: EngineName
    mode: Mode
    rows: tuple[int, ...]
    fixed: tuple[float, ...]
    """Of every step of a stage, whatever it holds."""
    embed: tuple[float, ...]
    layer: tuple[float, ...]
    head: tuple[float, ...]
    """Final norm and head matrix, for one row of each sequence."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.rows or self.rows[0] < 1 or any(a >= b for a, b in pairwise(self.rows)):
            raise ValueError(f"numbers of rows must grow from 1 or more, these are {self.rows}")
        for part in ("fixed", "embed", "layer", "head"):
            times = getattr(self, part)
            if len(times) != len(self.rows) or not all(isfinite(time) and time >= 0 for time in times):
                raise ValueError(f"{part} must have a time for each of {len(self.rows)} numbers of rows")
        return self

    def costs(self, layers: int) -> Costs:
        """What the parts of a model of `layers` layers cost, as shares of a whole step.

        The shares move with the number of rows (a head matrix gains most from many). This is their mean over the
        numbers of rows that decode steps have; few rows, which are more usual and gain least, weigh more.
        """
        shares: list[tuple[float, float, float]] = []
        weights: list[float] = []
        for i, rows in enumerate(self.rows):
            whole = self.embed[i] + layers * self.layer[i] + self.head[i]
            if rows <= _MOST_USUAL_ROWS and whole > 0:  # noise can swallow every difference
                shares.append((self.embed[i] / whole, self.layer[i] / whole, self.head[i] / whole))
                weights.append(1 / rows)
        if not shares:
            return Costs(0.0, (1.0,) * layers, 0.0)
        embed, layer, head = (sum(map(mul, share, weights)) / sum(weights) for share in zip(*shares, strict=True))
        return Costs(embed, (layer,) * layers, head)

    def step_times(self, edges: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """(rows, milliseconds) of the slowest stage of a chain with these edges."""
        return tuple(
            (rows, max(self._stage_ms(i, first, end, edges[-1]) for first, end in pairwise(edges)))
            for i, rows in enumerate(self.rows)
        )

    def _stage_ms(self, i: int, first: int, end: int, depth: int) -> float:
        embed, head = self.embed[i] * (first == 0), self.head[i] * (end == depth)
        return self.fixed[i] + embed + (end - first) * self.layer[i] + head


def measure(
    config: StageConfig, rows: tuple[int, ...] = ROWS, progress: Progress = silent, cache: Path | None = None
) -> CostProfile:
    """Time a layer, the embedding and the head as stages like `config` would run them (its own layers do not matter).

    Four small stages are loaded and take turns: the first layer, the second, the second and some more, and the last.
    What they differ in gives the parts. The package must have the weights of these layers, and memory hold them all.

    Raises:
        ConfigurationError: the model has fewer than four layers.
        PackageError, GraphError, StageError, CapacityError: as `load_stage`.
    """
    from shards.loading import load_stage

    store = PackageStore(config.package)
    spans = measured_stages(store.manifest.facts.layers, where=str(config.package))
    for span in spans:
        store.check(store.pieces_of_stage(*span))
    what, total = "measuring layers", len(spans) + len(rows)
    stages: list[StageRuntime] = []
    try:
        for first, end in spans:
            progress(what, len(stages), total)
            small = {"first_layer": first, "end_layer": end, "kv_tokens": kv_tokens(max(rows), _ROUNDS)}
            stages.append(load_stage(config.model_copy(update=small), cache=cache))
        by_rows: list[list[float]] = []
        for count in rows:
            progress(what, len(spans) + len(by_rows), total)
            by_rows.append(step_times(stages, count, _ROUNDS))
    finally:
        for stage in stages:
            stage.close()
    progress(what, total, total)
    opening, one, more, tail = (tuple(times) for times in zip(*by_rows, strict=True))
    several = spans[2][1] - spans[2][0]
    layer = tuple(_layer_time(a, b, several) for a, b in zip(one, more, strict=True))
    return CostProfile(
        device=config.device,
        engine=config.engine,
        mode=config.mode,
        rows=rows,
        fixed=_beyond(one, layer),
        embed=_beyond(opening, one),
        layer=layer,
        head=_beyond(tail, one),
    )


def _layer_time(one: float, more: float, several: int) -> float:
    """Of a layer, from a step through one and a step through several.

    Where other load swallows the difference, a share of the longer step, which is too much rather than nothing.
    """
    share = more / several
    added = (more - one) / (several - 1)
    return added if added >= _LEAST_PART * share else share


def measured_stages(depth: int, *, where: str) -> tuple[tuple[int, int], ...]:
    """The stages that `measure` loads, as layers [first, end): what a package must have for a measurement.

    Raises:
        ConfigurationError: a model of `depth` layers has fewer than four.
    """
    if depth < 4:
        raise ConfigurationError(
            f"a model of {depth} layers is too small to be measured in parts",
            where=where,
            hint="Deal its layers by their bytes.",
        )
    several = min(_SEVERAL, depth - 2)
    return (0, 1), (1, 2), (1, 1 + several), (depth - 1, depth)


def _beyond(larger: tuple[float, ...], smaller: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(max(0.0, a - b) for a, b in zip(larger, smaller, strict=True))
