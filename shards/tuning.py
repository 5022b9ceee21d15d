"""Fast mode's tuning: at load, try the few properties that matter on one real layer, and keep the best.

What suits depends on the processor and on how the weights are stored, by factors of up to three; no default is right
for all. The answer is kept on disk. Imports OpenVINO.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import openvino as ov
import psutil
from pydantic import BaseModel, ConfigDict

from shards import findings
from shards.device import Properties, family
from shards.edges import layers_between
from shards.errors import EdgeAgentError
from shards.loading import cut, make_runtime
from shards.manifest import Manifest
from shards.runtime import StageConfig, StageRuntime
from shards.timing import kv_tokens, step_times

GROUP_SIZE, THREADS = "DYNAMIC_QUANTIZATION_GROUP_SIZE", "INFERENCE_NUM_THREADS"

_GROUP_SIZES = (0, 32, 64, 128)
_ROWS = (1, 8)
_ROUNDS = 9
_WORTHWHILE = 0.97
"""A candidate must take less than this part of the default's time: the rest is noise."""


class Tuned(BaseModel):
    """What tuning found, as it is kept on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    properties: dict[str, int]
    """Only what differs from the plugin's defaults."""
    milliseconds: dict[str, dict[int, float]]
    """One layer's time by candidate and rows."""


def tune(
    core: ov.Core, graph: ov.Model, config: StageConfig, manifest: Manifest, base: Properties, cache: Path | None
) -> Properties:
    """Find the properties that make a stage fastest; `graph` (of the package) is not changed.

    Args:
        core: OpenVINO.
        graph: The graph of the package.
        config: The stage; tuning happens on the middle one of its layers.
        manifest: Of the package.
        base: The properties the stage is compiled with anyway.
        cache: Folder of earlier results. One that is damaged, or cannot be written, is as good as none.
    """
    file = findings.file_of("tuned", core, config, manifest, cache) if cache else None
    found = findings.recall(file, Tuned) if file else None
    if found is None:
        found = _measure(core, graph, config, manifest, base)
        if file:
            findings.keep(file, found)
    return dict(found.properties)


def _measure(core: ov.Core, graph: ov.Model, config: StageConfig, manifest: Manifest, base: Properties) -> Tuned:
    middle = (config.first_layer + config.end_layer) // 2
    layer = cut(graph.clone(), manifest, middle, middle + 1)
    small = config.model_copy(
        update={**layers_between(middle, middle + 1), "kv_tokens": kv_tokens(sum(_ROWS), _ROUNDS)}
    )

    def load(extra: Properties) -> StageRuntime:
        stage = make_runtime(core, layer.clone(), small, manifest.facts, base | extra)
        step_times([stage], max(_ROWS), rounds=1)  # kernels are made in the first step, and may fail there
        return stage

    milliseconds: dict[str, dict[int, float]] = {}
    chosen: dict[str, int] = {}
    for name, values in _candidates(config):
        entrants = [(chosen, load(chosen))]
        in_force = entrants[0][1].facts.properties.get(name)
        for value in values if in_force is not None else ():
            if str(value) != in_force:
                with suppress(EdgeAgentError):  # a value that this device or these weights do not take
                    entrants.append((chosen | {name: value}, load(chosen | {name: value})))
        stages = [stage for _, stage in entrants]
        by_rows = {rows: step_times(stages, rows, _ROUNDS) for rows in _ROWS}
        times = [{rows: taken[index] for rows, taken in by_rows.items()} for index in range(len(stages))]
        for (extra, stage), taken in zip(entrants, times, strict=True):
            milliseconds[json.dumps(extra)] = taken
            stage.close()
        ratios = [sum(taken[rows] / times[0][rows] for rows in _ROWS) / len(_ROWS) for taken in times]
        if min(ratios) < _WORTHWHILE:
            chosen = entrants[ratios.index(min(ratios))][0]
    return Tuned(properties=chosen, milliseconds=milliseconds)


def _candidates(config: StageConfig) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Properties to try one after the other, each on top of the best of those before."""
    yield GROUP_SIZE, _GROUP_SIZES
    if family(config.device) == "CPU" and config.threads is None and config.cores is None:
        counts = {psutil.cpu_count(logical=False), psutil.cpu_count()}
        yield THREADS, tuple(sorted(count for count in counts if count))
