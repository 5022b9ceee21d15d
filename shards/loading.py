"""From a package on disk to a running stage. An engine is imported when a stage is loaded, not before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shards.edges import Edge, begin_of, end_of
from shards.errors import PackageError
from shards.manifest import GRAPH, WEIGHTS
from shards.priority import step_back
from shards.progress import Progress, silent
from shards.runtime import StageConfig, StageRuntime
from shards.store import PackageStore

if TYPE_CHECKING:
    import openvino as ov

    from shards.device import Properties
    from shards.manifest import Manifest, ModelFacts

_AGAIN = "Export the model again."


def load_stage(config: StageConfig, progress: Progress = silent, cache: Path | None = None) -> StageRuntime:
    """Load layers of a package onto a device.

    Only the stage's own weights are ever touched, so the package may be sparse: OpenVINO maps the weights file, and the
    graph's copy of them goes when the device has its own; for llama.cpp they are copied into a file of the stage's own.

    Args:
        config: Which layers, where, how.
        progress: Told which of the steps of loading has begun.
        cache: Folder in which tuning results and the files of llama.cpp stages are kept; without one, they are made at
            each load.

    Raises:
        PackageError: the package lacks what the stage needs, has other bytes than its manifest says, or has not the
            layers asked for.
        GraphError: the graph cannot be cut, or not be run by this engine.
        StageError: the device is unknown, or refuses the stage.
        CapacityError: there is no memory for the KV cache.
    """
    if config.background:
        step_back()
    store = PackageStore(config.package)
    store.verify(store.pieces_of_stage(config.first_layer, config.end_layer, config.engine), progress)
    if config.engine == "llamacpp":
        from shards.llamacpp.loading import load_llamacpp_stage

        return load_llamacpp_stage(store, config, progress, cache)
    tuned = config.mode == "fast" and config.tune
    steps = ["reading the graph", *(["tuning"] if tuned else []), "cutting", "compiling"]

    def begin(step: str) -> None:
        progress(step, steps.index(step), len(steps))

    if config.cores is not None:
        # before OpenVINO looks at the processors
        from shards.device import pin_process

        pin_process(config.cores)
    import openvino as ov

    from shards.device import check_device, properties

    core = ov.Core()
    check_device(core, config.device)
    begin("reading the graph")
    graph = read_graph(core, store)
    chosen = properties(config.device, config.mode, config.threads, config.cores, config.kv_precision)
    if tuned:
        from shards.tuning import tune

        begin("tuning")
        chosen |= tune(core, graph, config, store.manifest, chosen, cache)
    begin("cutting")
    stage = cut(graph, store.manifest, begin_of(config), end_of(config))
    begin("compiling")
    runtime = make_runtime(core, stage, config, store.manifest.facts, chosen)
    progress("ready", len(steps), len(steps))
    return runtime


def read_graph(core: ov.Core, store: PackageStore) -> ov.Model:
    """The graph of a package, its weights mapped and not read.

    Raises:
        PackageError: OpenVINO cannot read it, or it has not the layers that the manifest says.
        GraphError: it is no graph that can be cut.
    """
    from shards.device import reason
    from shards.graph import depth

    path, own = store.folder / GRAPH, store.manifest.stage
    expected = own.end_layer - own.first_layer if own else store.manifest.facts.layers
    try:
        graph = core.read_model(path, store.folder / WEIGHTS)
    except RuntimeError as error:
        raise PackageError(f"OpenVINO cannot read the graph: {reason(error)}", where=str(path), hint=_AGAIN) from error
    graph.set_friendly_name(str(path))  # what its errors are about
    if (found := depth(graph)) != expected:
        raise PackageError(f"the graph has {found} layers, the manifest says {expected}", where=str(path), hint=_AGAIN)
    return graph


def layers_divide(store: PackageStore) -> bool:
    """Whether each layer of a package can be cut behind its attention; errors as `read_graph`."""
    import openvino as ov

    from shards.graph import find_layers

    return None not in find_layers(read_graph(ov.Core(), store)).middles


def cut(graph: ov.Model, manifest: Manifest, begin: Edge, end: Edge) -> ov.Model:
    """The stage between two edges, counted in the whole model; `graph` is changed in place.

    The graph of a stage folder begins at the stage's own first layer.
    """
    from shards.graph import cut_stage

    offset = manifest.stage.first_layer if manifest.stage else 0
    return cut_stage(graph, begin - offset, end - offset)


def make_runtime(
    core: ov.Core, stage: ov.Model, config: StageConfig, model: ModelFacts, chosen: Properties
) -> StageRuntime:
    """Give a cut stage (which is changed in place) to the engine of `config`; errors as `load_stage`."""
    if config.engine == "openvino-paged":
        from shards.openvino_paged import PagedStage

        return PagedStage(core, stage, config, model, chosen)
    from shards.openvino_stateful import StatefulStage

    return StatefulStage(core, stage, config, model, chosen)
