"""What the parts of a model cost on a device of this machine, measured on the real package. Imports OpenVINO late."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from shards.balance import Costs
from shards.errors import ConfigurationError
from shards.progress import Progress, silent
from shards.runtime import EngineName, Mode, StageConfig
from shards.store import PackageStore
from shards.timing import fastest_steps, kv_tokens

ROWS = (1, 4, 16, 64)
_ROUNDS = 5
_SEVERAL = 4


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

    def costs(self, rows: int, layers: int) -> Costs:
        """The parts of a model of `layers` layers, at the measured number of rows nearest to `rows`."""
        at = min(range(len(self.rows)), key=lambda index: abs(self.rows[index] - rows))
        return Costs(self.embed[at], (self.layer[at],) * layers, self.head[at])


def measure(
    config: StageConfig, rows: tuple[int, ...] = ROWS, progress: Progress = silent, cache: Path | None = None
) -> CostProfile:
    """Time a layer, the embedding and the head as stages like `config` would run them (its own layers do not matter).

    Four small stages are loaded one after another: the first layer, the second, the second and some more, and the last.
    What they differ in gives the parts. The package must have the weights of these layers.

    Raises:
        ConfigurationError: the model has fewer than four layers.
        PackageError, GraphError, StageError, CapacityError: as `load_stage`.
    """
    store = PackageStore(config.package)
    depth = store.manifest.facts.layers
    if depth < 4:
        raise ConfigurationError(
            f"a model of {depth} layers is too small to be measured in parts",
            where=str(config.package),
            hint="Deal its layers by their bytes.",
        )
    several = min(_SEVERAL, depth - 2)
    spans = ((0, 1), (1, 2), (1, 1 + several), (depth - 1, depth))
    for span in spans:
        store.check(store.pieces_of_stage(*span))
    what, total = "measuring layers", len(spans)
    times = []
    for done, (first, end) in enumerate(spans):
        progress(what, done, total)
        small = {"first_layer": first, "end_layer": end, "kv_tokens": kv_tokens(max(rows), _ROUNDS)}
        times.append(_stage_times(config.model_copy(update=small), rows, cache))
    progress(what, total, total)
    opening, one, more, tail = times
    layer = tuple(max(0.0, (b - a) / (several - 1)) for a, b in zip(one, more, strict=True))
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


def _stage_times(config: StageConfig, rows: tuple[int, ...], cache: Path | None) -> tuple[float, ...]:
    from shards.loading import load_stage

    stage = load_stage(config, cache=cache)
    times = tuple(fastest_steps([stage], count, _ROUNDS)[0] for count in rows)
    stage.close()
    return times


def _beyond(larger: tuple[float, ...], smaller: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(max(0.0, a - b) for a, b in zip(larger, smaller, strict=True))
