"""Source: an OpenVINO IR folder in the layout of optimum-intel. It is packed as it is."""

from __future__ import annotations

from pathlib import Path

from exporters import facts
from exporters.sources import PreparedSource, Weights
from shards.errors import ExportError
from shards.progress import Progress

GRAPH = "openvino_model.xml"
_TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def prepare(folder: Path, workdir: Path, weights: Weights | None, progress: Progress) -> PreparedSource:
    """Check that the folder is complete and collect the facts; nothing is converted.

    Raises:
        ExportError: a file is missing, or the weights are to be stored in another way than they are.
        GraphError: the graph is not a decoder that can be cut into layers.
    """
    if weights not in (None, "keep"):
        raise ExportError(
            f"an OpenVINO IR is packed as it is, so its weights cannot become {weights}",
            where=str(folder),
            hint="Export the original model with --weights, or leave the option out.",
        )
    graph = folder / GRAPH
    tokenizer, detokenizer = (folder / name for name in _TOKENIZERS)
    for path, hint in (
        (graph.with_suffix(".bin"), "Copy the weights beside the graph."),
        *(
            (path.with_suffix(suffix), _HOW_TO_CONVERT)
            for path in (tokenizer, detokenizer)
            for suffix in (".xml", ".bin")
        ),
    ):
        if not path.is_file():
            raise ExportError(f"{path.name} is missing", where=str(folder), hint=hint)
    return PreparedSource(
        graph=graph,
        weights=graph.with_suffix(".bin"),
        tokenizer=tokenizer,
        detokenizer=detokenizer,
        facts=facts.read(graph, name=folder.resolve().name, folder=folder, tokenizer=tokenizer),
        description={"kind": "OpenVINO IR", "path": str(folder.resolve())},
    )


_HOW_TO_CONVERT = "Make it with: convert_tokenizer HUB_NAME_OR_FOLDER --with-detokenizer -o THIS_FOLDER"
