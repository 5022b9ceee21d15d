"""Cutting a stage: decoder layers [first, end) of a graph, as a graph of its own."""

from __future__ import annotations

import openvino as ov
from openvino import opset13 as op

from shards.device import reason
from shards.graph.nodes import refuse
from shards.graph.rebase import rebase_shapes
from shards.graph.waist import find_layers

STAGE_INPUT = "inputs_embeds"
STAGE_OUTPUT = "hidden_states"


def depth(model: ov.Model) -> int:
    """Number of decoder layers.

    Raises:
        GraphError: The graph is not one that can be cut.
    """
    return find_layers(model).depth


def cut_stage(model: ov.Model, first: int, end: int) -> ov.Model:
    """Reduce `model` to the decoder layers [first, end) and return it: read a fresh one for each stage.

    The first stage keeps the token input, the others take `inputs_embeds`; the tail keeps `logits`, the others give
    `hidden_states`; both are f32 [batch, rows, hidden size]. Each KV cache keeps its `Gather(ReadValue, beam_idx)`
    and the initialiser of its state, which the plugins' own fusions look for.

    Raises:
        GraphError: The graph cannot be cut, or has no such layers.
    """
    layers = find_layers(model)
    if not 0 <= first < end <= layers.depth:
        raise refuse(
            model,
            f"layers {first} to {end} were asked of a graph with layers 0 to {layers.depth}",
            "A stage is at least one layer: 0 <= first < end <= depth.",
        )
    if (first, end) == (0, layers.depth):
        return model
    foreign = [cache for k, pair in enumerate(layers.caches) if not first <= k < end for cache in pair]
    if end < layers.depth:
        out = layers.edges[end].output(0)
        out.set_names({STAGE_OUTPUT})
        model.remove_result(layers.result)
        model.add_results([op.result(out, name=STAGE_OUTPUT)])
    dropped = {cache.get_attributes()["variable_id"] for cache in foreign}
    for sink in model.get_sinks():
        if sink.get_attributes()["variable_id"] in dropped:
            model.remove_sink(sink)
    if first > 0:
        edge = layers.edges[first].output(0)
        hidden = op.parameter(ov.PartialShape([-1, -1, layers.hidden_size]), ov.Type.f32, name=STAGE_INPUT)
        for port in edge.get_target_inputs():
            port.replace_source_output(hidden.output(0))
        edge.set_names(set())
        hidden.output(0).set_names({STAGE_INPUT})
        rebase_shapes(model, layers, first, hidden, foreign)
        model.add_parameters([hidden])
        model.remove_parameter(layers.token)
    for variable in model.get_variables():
        if variable.info.variable_id in dropped:
            model.remove_variable(variable)
    model.set_friendly_name(f"layers_{first}_{end}")
    try:
        model.validate_nodes_and_infer_types()
    except RuntimeError as error:
        raise refuse(model, f"layers {first} to {end} cannot stand alone ({reason(error)})") from None
    return model
