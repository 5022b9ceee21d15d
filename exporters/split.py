"""`--split 15,15`: one folder per stage, for copying to its PC by hand.

A stage folder is a small package of its own: the graph in it is the already cut stage and its weights file holds that
stage's constants and nothing else, so a plain copy is as small as the stage. It is loaded like any package
(`load_stage` with the folder, and the layers its manifest names under `stage`), and for no other layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from exporters.package import tokenizer_files, write_package
from shards import manifest as manifests
from shards.errors import ConfigurationError, ExportError
from shards.manifest import Manifest, StageOf, WeightSpans, merge
from shards.progress import Progress


def stage_folder(package: Path, number: int) -> Path:
    """Where the folder of a stage goes: beside the package."""
    return package.with_name(f"{package.name}-stage-{number}")


def edges_of(split: Sequence[int], layers: int) -> list[tuple[int, int]]:
    """[first, end) of each stage of a split given as numbers of layers.

    Raises:
        ConfigurationError: the numbers are not a split of `layers` layers.
    """
    if sum(split) == layers and min(split) > 0:
        return list(pairwise(accumulate(split, initial=0)))
    text, total = ",".join(map(str, split)), sum(split)
    raise ConfigurationError(
        f"{text} has a stage without layers"
        if total == layers
        else f"{text} is {total} layers, the model has {layers}",
        where="--split",
        hint=f"Give the layers of each stage, at least one, together {layers}.",
    )


def write_stage(package: Path, first: int, end: int, folder: Path, progress: Progress) -> Manifest:
    """Write the stage of layers [first, end) into the new `folder`.

    Raises:
        GraphError: the graph cannot be cut there.
        ExportError: the stage cannot be written.
        CapacityError: the disk is full.
    """
    import openvino as ov

    from shards.device import reason
    from shards.graph import cut_stage, layer_spans

    whole = manifests.read(package)
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    xml = scratch / "graph.xml"
    try:
        model = ov.Core().read_model(package / manifests.GRAPH, package / manifests.WEIGHTS)
        ov.serialize(cut_stage(model, first, end), xml, xml.with_suffix(".bin"))
        del model
        own = layer_spans(xml)  # reads the stage again, so a file cut short by a full disk is noticed
    except RuntimeError as error:
        raise ExportError(f"the stage cannot be written ({reason(error)})", where=str(folder)) from error
    has_tokenizer = any(entry.path == manifests.TOKENIZER for entry in whole.files)
    tokenizers = (package / manifests.TOKENIZER, package / manifests.DETOKENIZER) if has_tokenizer else (None, None)
    away: tuple[tuple[manifests.Span, ...], ...] = ((),)
    spans = WeightSpans(
        shared=merge([*own.shared, *(own.embedding if first else ()), *(own.head if end < whole.facts.layers else ())]),
        embedding=() if first else own.embedding,
        layers=away * first + own.layers + away * (whole.facts.layers - end),
        head=own.head if end == whole.facts.layers else (),
    )
    manifest = write_package(
        folder,
        {manifests.GRAPH: xml, manifests.WEIGHTS: xml.with_suffix(".bin"), **tokenizer_files(*tokenizers)},
        whole.facts,
        spans,
        source=whole.source,
        stage=StageOf(package_id=whole.package_id, first_layer=first, end_layer=end),
        scratch=scratch,
        progress=progress,
    )
    scratch.rmdir()
    return manifest
