"""From a package on disk to a running llama.cpp stage."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from shards.device import pin_process
from shards.errors import PackageError, StageError
from shards.llamacpp import metadata, stage_file
from shards.llamacpp.binding import binding
from shards.llamacpp.runtime import LlamaCppRuntime
from shards.llamacpp.stage_cache import StageFiles
from shards.manifest import LLAMACPP_METADATA, LLAMACPP_TENSORS
from shards.progress import Progress
from shards.runtime import StageConfig
from shards.store import PackageStore

_FOLDER = "llamacpp"
"""In the cache."""


def load_llamacpp_stage(
    store: PackageStore, config: StageConfig, progress: Progress, cache: Path | None
) -> LlamaCppRuntime:
    """Write the stage's file into the cache, unless it is there, and load it; arguments and errors as `load_stage`."""
    _check(config)
    if config.cores is not None:
        pin_process(config.cores)
    binding()  # what is missing is said before a file is written
    progress("writing the stage's file", 0, 2)
    model = metadata.read(store.folder / LLAMACPP_METADATA)
    facts = store.manifest.facts
    if (model.depth, model.width, model.vocabulary) != (facts.layers, facts.hidden_size, facts.vocabulary):
        raise PackageError(
            "the llama.cpp backend is of another model than the manifest describes",
            where=str(store.folder / LLAMACPP_METADATA),
            hint="Export the model again.",
        )
    first, end = config.first_layer, config.end_layer
    with ExitStack() as stack:
        folder = cache / _FOLDER if cache else Path(stack.enter_context(TemporaryDirectory(prefix="edge-agent-")))
        path = stack.enter_context(
            StageFiles(folder).held(
                f"{store.manifest.package_id[:16]}-{first}-{end}.gguf",
                stage_file.lay_out(model, first, end),
                store.folder / LLAMACPP_TENSORS,
                store.manifest.spans_for(config.engine).of_stage(first, end),
            )
        )
        progress("loading the stage", 1, 2)
        at_end = ExitStack()
        runtime = LlamaCppRuntime(path, config, facts, at_end.close)
        at_end.push(stack.pop_all())
    progress("ready", 2, 2)
    return runtime


def _check(config: StageConfig) -> None:
    """Refuse what llama.cpp stages cannot do.

    Raises:
        StageError: says what.
    """
    if config.device != "CPU":
        raise StageError(
            f"llama.cpp stages run on the CPU, not on {config.device}",
            where="device",
            hint="Use device CPU, or an OpenVINO engine.",
        )
    if config.capture:
        raise StageError(
            "llama.cpp stages do not give the hidden states that logits are made of",
            where="capture",
            hint="Run the last layers with an OpenVINO engine.",
        )
    if config.begins_after_attention or config.ends_after_attention:
        raise StageError(
            "llama.cpp stages begin and end between two layers, not within one",
            where="layers",
            hint="Cut at whole layers, or use an OpenVINO engine.",
        )
