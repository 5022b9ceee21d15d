"""Keeping shape arithmetic alive when the tensors it measured are cut away.

Decoder graphs measure batch and lengths wherever it was convenient: the mask takes its length from layer 0's key, every
cache initialiser its batch from the token ids. In a stage without those tensors the same numbers come from the stage's
own hidden state and its own first key cache.
"""

from __future__ import annotations

import openvino as ov
from openvino import opset13 as op

from shards.graph.nodes import constant, readers, refuse, sources
from shards.graph.waist import ATTENTION, Layers


def rebase_shapes(model: ov.Model, layers: Layers, first: int, hidden: ov.Node, foreign: list[ov.Node]) -> None:
    """Replace each ShapeOf of a tensor the stage lost by arithmetic on what it has.

    Args:
        model: The graph; nothing of it may read the hidden state that the stage begins with any more.
        layers: What was found in it.
        first: The layer of the stage's first attention.
        hidden: The Parameter that took the place of that hidden state.
        foreign: The KV states that do not belong to the stage.

    Raises:
        GraphError: A lost tensor's shape cannot be told from batch, rows and cache length.
    """
    order = model.get_ordered_ops()
    from_tokens = _downstream(order, {layers.token.get_name()}, {"ShapeOf", "ReadValue"})
    from_caches = _downstream(order, {state.get_name() for state in foreign}, {"ShapeOf", "ReadValue", ATTENTION})
    lost = [
        node
        for node in order
        if node.get_type_name() == "ShapeOf" and sources(node)[0].get_name() in from_tokens | from_caches
    ]
    if not lost:
        return
    own = layers.caches[first][0]
    gathers = [node for node in readers(own) if node.get_type_name() == "Gather"]
    past = _size(gathers[0] if gathers else own, _length_axis(model, own))
    batch, rows = _size(hidden, 0), _size(hidden, 1)
    total = op.add(past, rows)
    for node in lost:
        source = sources(node)[0].get_name()
        length = rows if source not in from_caches else total if source in from_tokens else past
        shape = node.input_value(0).get_partial_shape()
        dims = list(shape) if shape.rank.is_static else []
        moving = [axis for axis, dim in enumerate(dims) if dim.is_dynamic]
        if len(moving) == 2:
            sizes = {moving[0]: batch, moving[1]: length}
        elif len(dims) == 2 and moving == [0]:  # rows of all sequences in one axis
            sizes = {0: op.multiply(batch, length)}
        else:
            raise refuse(model, f"{node.get_friendly_name()} measures a tensor of shape {shape} that a cut removes")
        parts = [sizes.get(axis) or constant(dim.get_length()) for axis, dim in enumerate(dims)]
        value = op.concat(parts, 0)
        if node.get_element_type() != ov.Type.i64:
            value = op.convert(value, node.get_element_type().get_type_name())
        for port in node.output(0).get_target_inputs():
            port.replace_source_output(value.output(0))


def _downstream(order: list[ov.Node], start: set[str], stops: set[str]) -> set[str]:
    """Names of the nodes computed from `start` without passing an operation type in `stops`."""
    found = set(start)
    for node in order:
        if node.get_type_name() not in stops and any(source.get_name() in found for source in sources(node)):
            found.add(node.get_name())
    return found


def _size(node: ov.Node, axis: int) -> ov.Node:
    """The size of one axis, as an i64 vector of one."""
    return op.gather(op.shape_of(node, "i64"), constant(axis), constant(0))


def _length_axis(model: ov.Model, state: ov.Node) -> int:
    """The axis of a KV state that grows: the second dynamic one (the first is the batch)."""
    shape = state.output(0).get_partial_shape()
    moving = [axis for axis, dim in enumerate(shape) if dim.is_dynamic]
    if len(moving) != 2:
        raise refuse(model, f"the KV state {state.get_friendly_name()} has shape {shape}: which axis grows is unclear")
    return moving[1]
