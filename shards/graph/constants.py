"""Which bytes of the weights file a stage needs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import openvino as ov

from shards.device import reason
from shards.errors import GraphError
from shards.graph.nodes import behind, sources
from shards.graph.waist import Layers, find_layers
from shards.manifest import Span, WeightSpans, merge

_AGAIN = "Export the model again."

SMALL_BYTES = 1024
"""The reader infers shapes over the whole graph before it is cut, so every constant up to this size must be there."""


def constant_ranges(xml: Path) -> dict[str, Span]:
    """Bytes [start, end) of each Constant in the weights file, by friendly name.

    Raises:
        GraphError: The file is not an OpenVINO IR, or two of its constants have one name.
    """
    ranges: dict[str, Span] = {}
    try:
        for layer in ElementTree.parse(xml).getroot().iterfind("layers/layer[@type='Const']"):
            name, data = layer.attrib["name"], layer.find("data")
            if name in ranges:
                raise GraphError(f"two constants are named {name}", where=str(xml), hint=_AGAIN)
            start, size = (int(data.attrib[key]) if data is not None else 0 for key in ("offset", "size"))
            ranges[name] = (start, start + size)
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        raise GraphError(f"the graph cannot be read ({error})", where=str(xml), hint=_AGAIN) from None
    if not ranges:
        raise GraphError("the graph holds no weights", where=str(xml), hint="Is this an OpenVINO IR (.xml)?")
    return ranges


def layer_spans(xml: Path, weights: Path | None = None) -> WeightSpans:
    """The bytes each layer, the embedding and the head need; `WeightSpans.of_stage` then covers any stage.

    The weights (default: the `.bin` beside the graph) are mapped, not read through.

    Raises:
        GraphError: The graph cannot be read or cut.
    """
    ranges = constant_ranges(xml)
    try:
        model = ov.Core().read_model(xml, weights or xml.with_suffix(".bin"))
    except RuntimeError as error:
        raise GraphError(f"OpenVINO cannot read the graph ({reason(error)})", where=str(xml), hint=_AGAIN) from None
    model.set_friendly_name(str(xml))
    layers = find_layers(model)
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


def _regions(model: ov.Model, layers: Layers) -> list[dict[str, ov.Node]]:
    """What the embedding, each layer and the head are computed from, each down to the hidden state it starts from."""
    measures = _measures(model, layers.token)
    sinks = {sink.get_attributes()["variable_id"]: sink for sink in model.get_sinks()}
    regions: list[dict[str, ov.Node]] = []
    known: set[str] = set()
    for k in range(layers.depth + 2):
        roots: list[ov.Node] = [layers.edges[k]] if k <= layers.depth else [layers.result]
        if 1 <= k <= layers.depth:
            roots += [sinks[state.get_attributes()["variable_id"]] for state in layers.caches[k - 1]]
        start = [layers.edges[k - 1].get_name()] if k else []
        region = behind(roots, [*start, *measures])
        for name in start:
            region.pop(name, None)
        known |= region.keys()
        # in a stage with the earlier layers too, what they measure is computed: by their own nodes, but for rare ones
        extra = behind([sources(measures[name])[0] for name in region if name in measures], known)
        region |= {name: node for name, node in extra.items() if name not in known}
        known |= extra.keys()
        regions.append(region)
    return regions


def _measures(model: ov.Model, token: ov.Node) -> dict[str, ov.Node]:
    """The ShapeOf of tensors that a cut may remove, by name: a stage without them measures its own (see rebase)."""
    carried = {token.get_name()}
    found = {}
    for node in model.get_ordered_ops():
        name, kind = node.get_name(), node.get_type_name()
        reads = any(source.get_name() in carried for source in sources(node))
        if kind == "ShapeOf" and reads:
            found[name] = node
        elif kind == "ReadValue" or reads:
            carried.add(name)
    return found
