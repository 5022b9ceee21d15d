"""What the parts of a model cost on a device of this machine, measured on the real package. Imports OpenVINO late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from shards.balance import Costs
from shards.edges import Edge, attentions, feed_forwards, layers_between
from shards.errors import ConfigurationError
from shards.progress import Progress, silent
from shards.runtime import EngineName, Mode, StageConfig, StageRuntime
from shards.store import PackageStore
from shards.timing import kv_tokens, step_times

ROWS = (1, 2, 4, 8, 16, 64)
"""Kernels have cliffs, most of them between 4 and 8 rows."""

_ROUNDS = 5
_MOST_USERS = 32
"""Decode steps are dealt with up to so many users in mind."""

_SEVERAL = 4
_DIVIDED = (1, 2.5)
"""The second layer and the attention of the third, which are among the second and some more."""
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
    attention: tuple[float, ...] = ()
    """Of a layer, what comes before the middle it can be cut at; empty: layers are not divided."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.rows or self.rows[0] < 1 or any(a >= b for a, b in pairwise(self.rows)):
            raise ValueError(f"numbers of rows must grow from 1 or more, these are {self.rows}")
        for part in ("fixed", "embed", "layer", "head", *(["attention"] if self.attention else [])):
            times = getattr(self, part)
            if len(times) != len(self.rows) or not all(isfinite(time) and time >= 0 for time in times):
                raise ValueError(f"{part} must have a time for each of {len(self.rows)} numbers of rows")
        if any(attention > layer for attention, layer in zip(self.attention, self.layer, strict=False)):
            raise ValueError(f"attention cannot take longer than the layer it is part of: {self.attention}")
        return self

    def costs(self, layers: int, stages: int) -> tuple[Costs, ...]:
        """What the parts of a model of `layers` layers cost, as shares of what each of `stages` stages should take.

        One table for each number of rows that up to 32 users make of as many groups as there are stages, since the
        shares move with it (a head matrix gains most from many). So the largest stage cost of a deal is its largest
        relative loss, at whatever number of users, against stages that are all alike.
        """
        tables = []
        for i, rows in enumerate(self.rows):
            parts = self.embed[i] + layers * self.layer[i] + self.head[i]
            if parts > 0 and (i == 0 or rows * stages <= _MOST_USERS):  # noise can swallow every difference
                fair = self.fixed[i] + parts / stages
                tables.append(
                    Costs(
                        embed=self.embed[i] / fair,
                        layers=(self.layer[i] / fair,) * layers,
                        head=self.head[i] / fair,
                        attention=tuple(time / fair for time in self.attention[i : i + 1]) * layers,
                        fixed=self.fixed[i] / fair,
                    )
                )
        return tuple(tables) or (Costs(0.0, (1.0,) * layers, 0.0),)

    def step_times(self, edges: Sequence[Edge]) -> tuple[tuple[int, float], ...]:
        """(rows, milliseconds) of the slowest stage of a chain with these edges."""
        return tuple(
            (rows, max(self._stage_ms(i, begin, end, edges[-1]) for begin, end in pairwise(edges)))
            for i, rows in enumerate(self.rows)
        )

    def _stage_ms(self, i: int, begin: Edge, end: Edge, depth: Edge) -> float:
        embed, head = self.embed[i] * (begin == 0), self.head[i] * (end == depth)
        rest = feed_forwards(begin, end)
        more = attentions(begin, end) - rest  # of one than of the other, where a layer is divided
        return self.fixed[i] + embed + rest * self.layer[i] + (more * self.attention[i] if more else 0.0) + head


def measure(
    config: StageConfig, rows: tuple[int, ...] = ROWS, progress: Progress = silent, cache: Path | None = None
) -> CostProfile:
    """Time a layer, the embedding and the head as stages like `config` would run them (its own layers do not matter).

    Small stages are loaded and take turns: the first layer, the second, the second and some more, the last, and in fast
    mode, where the engine can cut layers in their middle, the second and the attention of the third. What they differ
    in gives the parts. The package must have the weights of these layers, and memory hold them all.

    Raises:
        ConfigurationError: the model has fewer than four layers.
        PackageError, GraphError, StageError, CapacityError: as `load_stage`.
    """
    from shards.loading import layers_divide, load_stage

    store = PackageStore(config.package)
    layers = measured_stages(store.manifest.facts.layers, where=str(config.package))
    for first, end in layers:
        store.check(store.pieces_of_stage(first, end, config.engine))
    spans: list[tuple[Edge, Edge]] = [*layers]
    if config.mode == "fast" and config.engine != "llamacpp" and layers_divide(store):
        spans.append(_DIVIDED)
    what, total = "measuring layers", len(spans) + len(rows)
    stages: list[StageRuntime] = []
    try:
        for begin, after in spans:
            progress(what, len(stages), total)
            small = {**layers_between(begin, after), "kv_tokens": kv_tokens(max(rows), _ROUNDS)}
            stages.append(load_stage(config.model_copy(update=small), cache=cache))
        by_rows: list[list[float]] = []
        for count in rows:
            progress(what, len(spans) + len(by_rows), total)
            by_rows.append(step_times(stages, count, _ROUNDS))
    finally:
        for stage in stages:
            stage.close()
    progress(what, total, total)
    opening, one, more, tail, *divided = (tuple(times) for times in zip(*by_rows, strict=True))
    several = layers[2][1] - layers[2][0]
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
        attention=_attention(divided[0], one, layer) if divided else (),
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


def _attention(divided: tuple[float, ...], one: tuple[float, ...], layer: tuple[float, ...]) -> tuple[float, ...]:
    """Of a layer's attention, from steps through one layer with the attention of another and without it.

    Both parts of a layer are matrix products in the main, so its share moves little with the number of rows. The median
    is taken for all, since other load easily swallows so small a difference.
    """
    share = median(
        min(1.0, (a - b) / whole) if whole > 0 else 0.0 for a, b, whole in zip(divided, one, layer, strict=True)
    )
    return tuple(max(0.0, share) * whole for whole in layer)


def _beyond(larger: tuple[float, ...], smaller: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(max(0.0, a - b) for a, b in zip(larger, smaller, strict=True))
