"""Cutting a stage: the decoder layers between two edges of a graph, as a graph of its own."""

from __future__ import annotations

from math import ceil, floor

import openvino as ov
from openvino import opset13 as op

from shards.device import reason
from shards.edges import Edge
from shards.graph.nodes import refuse
from shards.graph.rebase import rebase_shapes
from shards.graph.waist import Layers, find_layers

STAGE_INPUT = "inputs_embeds"
STAGE_OUTPUT = "hidden_states"


def depth(model: ov.Model) -> int:
    """Number of decoder layers.

    Raises:
        GraphError: The graph is not one that can be cut.
    """
    return find_layers(model).depth


def cut_stage(model: ov.Model, begin: Edge, end: Edge) -> ov.Model:
    """Reduce `model` to the decoder layers between two edges and return it: read a fresh one for each stage.

    The first stage keeps the token input, the others take `inputs_embeds`; the tail keeps `logits`, the others give
    `hidden_states`; both are f32 [batch, rows, hidden size]. Each KV cache keeps its `Gather(ReadValue, beam_idx)`
    and the initialiser of its state, which the plugins' own fusions look for.

    Raises:
        GraphError: The graph cannot be cut, or not there.
    """
    layers = find_layers(model)
    depth = layers.depth
    if not (begin >= 0 and end <= depth and end - begin >= 1):
        raise refuse(
            model,
            f"layers {begin} to {end} were asked of a graph with layers 0 to {depth}",
            "A stage is at least as much as one layer: 0 <= begin, begin + 1 <= end, end <= depth.",
        )
    if (begin, end) == (0, depth):
        return model
    own = range(ceil(begin), ceil(end))  # each KV cache is where its attention is
    foreign = [cache for k, pair in enumerate(layers.caches) if k not in own for cache in pair]
    if end < depth:
        out = _state_at(model, layers, end).output(0)
        out.set_names({STAGE_OUTPUT})
        model.remove_result(layers.result)
        model.add_results([op.result(out, name=STAGE_OUTPUT)])
    dropped = {cache.get_attributes()["variable_id"] for cache in foreign}
    for sink in model.get_sinks():
        if sink.get_attributes()["variable_id"] in dropped:
            model.remove_sink(sink)
    if begin > 0:
        edge = _state_at(model, layers, begin).output(0)
        hidden = op.parameter(ov.PartialShape([-1, -1, layers.hidden_size]), ov.Type.f32, name=STAGE_INPUT)
        for port in edge.get_target_inputs():
            port.replace_source_output(hidden.output(0))
        edge.set_names(set())
        hidden.output(0).set_names({STAGE_INPUT})
        rebase_shapes(model, layers, own[0], hidden, foreign)
        model.add_parameters([hidden])
        model.remove_parameter(layers.token)
    for variable in model.get_variables():
        if variable.info.variable_id in dropped:
            model.remove_variable(variable)
    model.set_friendly_name(f"layers_{begin}_{end}")
    try:
        model.validate_nodes_and_infer_types()
    except RuntimeError as error:
        raise refuse(model, f"layers {begin} to {end} cannot stand alone ({reason(error)})") from None
    return model


def _state_at(model: ov.Model, layers: Layers, edge: Edge) -> ov.Node:
    """The node whose output 0 is the hidden state at an edge."""
    k = floor(edge)
    if edge == k:
        return layers.edges[k]
    middle = layers.middles[k]
    if middle is None:
        raise refuse(
            model,
            f"no single tensor carries everything behind the attention of layer {k}",
            "Cut this model between layers only.",
        )
    return middle
