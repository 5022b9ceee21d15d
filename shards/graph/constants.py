"""Which bytes of the weights file a stage needs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import openvino as ov

from shards.errors import GraphError
from shards.graph.nodes import behind, sources
from shards.graph.waist import Layers, find_layers
from shards.manifest import Span, WeightSpans, merge

SMALL_BYTES = 1024
"""The reader infers shapes over the whole graph before it is cut, so every constant up to this size must be there."""


def constant_ranges(xml: Path) -> dict[str, Span]:
    """Bytes [start, end) of each Constant in the weights file, by friendly name.

    Raises:
        GraphError: The file is not an OpenVINO IR, or two of its constants have one name.
    """
    try:
        layers = ElementTree.parse(xml).getroot().find("layers")
    except (OSError, ElementTree.ParseError) as error:
        raise GraphError(f"the graph cannot be read ({error})", where=str(xml), hint="Export the model again.") from None
    ranges: dict[str, Span] = {}
    for layer in layers if layers is not None else ():
        data = layer.find("data")
        if layer.get("type") != "Const" or data is None:
            continue
        name, start = layer.get("name", ""), int(data.get("offset", 0))
        if name in ranges:
            raise GraphError(f"two constants are named {name}", where=str(xml), hint="Export the model again.")
        ranges[name] = (start, start + int(data.get("size", 0)))
    if not ranges:
        raise GraphError("the graph holds no weights", where=str(xml), hint="Is this an OpenVINO IR (.xml)?")
    return ranges


def layer_spans(xml: Path) -> WeightSpans:
    """The bytes each layer, the embedding and the head need; `WeightSpans.of_stage` then covers any stage.

    Reading the graph maps the weights file beside it, without reading it through.

    Raises:
        GraphError: The graph cannot be read or cut.
    """
    ranges = constant_ranges(xml)
    layers, model = _read(xml)
    regions = _regions(model, layers)

    def spans(region: dict[str, ov.Node]) -> tuple[Span, ...]:
        names = (node.get_friendly_name() for node in region.values() if node.get_type_name() == "Constant")
        large = [ranges[name] for name in names if name in ranges]
        return merge([span for span in large if span[1] - span[0] > SMALL_BYTES])

    small = [span for span in ranges.values() if span[1] - span[0] <= SMALL_BYTES]
    return WeightSpans(
        shared=merge(small),
        embedding=spans(regions[0]),
        layers=tuple(spans(region) for region in regions[1:-1]),
        head=spans(regions[-1]),
    )


def stage_spans(xml: Path, stage: ov.Model) -> tuple[Span, ...]:
    """The bytes one cut stage needs."""
    ranges = constant_ranges(xml)
    mine = [ranges[n.get_friendly_name()] for n in stage.get_ordered_ops() if n.get_friendly_name() in ranges]
    return merge(mine + [span for span in ranges.values() if span[1] - span[0] <= SMALL_BYTES])


def _read(xml: Path) -> tuple[Layers, ov.Model]:
    model = ov.Core().read_model(xml)
    return find_layers(model), model


def _regions(model: ov.Model, layers: Layers) -> list[dict[str, ov.Node]]:
    """What the embedding, each layer and the head are computed from, each down to the hidden state it starts from."""
    order = model.get_ordered_ops()
    # measurements of tensors that a cut may remove: a stage without them measures its own (see rebase)
    carried = {layers.token.get_name()}
    for node in order:
        kind = node.get_type_name()
        if kind == "ReadValue" or (kind != "ShapeOf" and any(s.get_name() in carried for s in sources(node))):
            carried.add(node.get_name())
    measures = {n.get_name(): n for n in order if n.get_type_name() == "ShapeOf" and sources(n)[0].get_name() in carried}
    sinks: dict[str, ov.Node] = {s.get_attributes()["variable_id"]: s for s in model.get_sinks()}
    regions: list[dict[str, ov.Node]] = []
    known: set[str] = set()
    for k in range(layers.depth + 2):
        roots: list[ov.Node] = [layers.edges[k]] if k <= layers.depth else [layers.result]
        start = [layers.edges[k - 1].get_name()] if k else []
        if 1 <= k <= layers.depth:
            roots += [sinks[state.get_attributes()["variable_id"]] for state in layers.caches[k - 1]]
        region = behind(roots, [*start, *measures])
        region = {name: node for name, node in region.items() if name not in start}
        known |= region.keys()
        # where an earlier layer is in the stage its tensors are measured themselves: normally known already
        measured = [sources(measures[name])[0] for name in region if name in measures]
        extra = behind(measured, known)
        region |= {name: node for name, node in extra.items() if name not in known}
        known |= extra.keys()
        regions.append(region)
    return regions
