"""Source: an OpenVINO IR folder in the layout of optimum-intel. It is packed as it is."""

from __future__ import annotations

from pathlib import Path

from exporters import facts
from exporters.sources import PreparedSource, Weights
from shards.errors import ExportError
from shards.progress import Progress

GRAPH = "openvino_model.xml"
_TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
_AGAIN = "Download or convert the model again."
_HOW_TO_CONVERT = "Make it with: convert_tokenizer HUB_NAME_OR_FOLDER --with-detokenizer -o THIS_FOLDER"


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
    needed = [(graph.with_suffix(".bin"), "Copy the weights beside the graph.")]
    for xml in (tokenizer, detokenizer):
        needed += [(xml, _HOW_TO_CONVERT), (xml.with_suffix(".bin"), _HOW_TO_CONVERT)]
    for path, hint in needed:
        if not path.is_file():
            raise ExportError(f"{path.name} is missing", where=str(folder), hint=hint)
    _check_weights(graph)
    try:
        known = facts.read(graph, name=folder.resolve().name, folder=folder, tokenizer=tokenizer)
    except RuntimeError as error:
        from shards.device import reason

        raise ExportError(f"OpenVINO cannot read the graph: {reason(error)}", where=str(graph), hint=_AGAIN) from error
    return PreparedSource(
        graph=graph,
        weights=graph.with_suffix(".bin"),
        tokenizer=tokenizer,
        detokenizer=detokenizer,
        facts=known,
        description={"kind": "OpenVINO IR", "path": str(folder.resolve())},
    )


def _check_weights(graph: Path) -> None:
    """See that the weights file is as long as the graph says: half a download is better named than mapped."""
    from shards.graph import constant_ranges

    weights = graph.with_suffix(".bin")
    held, wanted = weights.stat().st_size, max(end for _, end in constant_ranges(graph).values())
    if held < wanted:
        raise ExportError(
            f"the weights are cut short: the graph needs {wanted} bytes, the file has {held}",
            where=str(weights),
            hint=_AGAIN,
        )
