"""What follows the last layer: on its own, or with fewer rows in its matrix, for logits of some tokens only."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from shards.graph.nodes import behind, constant, refuse, sources
from shards.graph.rows import head_input
from shards.graph.waist import find_layers

_HINT = "Export it without --draft-vocabulary."
_BY_ROW = frozenset({"Constant", "Convert", "Multiply", "Reshape", "Subtract"})
"""Operations of a decompression, which do to each row what does not depend on the others."""


def cut_head(model: ov.Model) -> ov.Model:
    """Final norm and head of a whole model: hidden states [1, rows, hidden size] to logits. Changes `model`.

    Raises:
        GraphError: the graph is not one that can be cut.
    """
    layers = find_layers(model)
    hidden = op.parameter(ov.PartialShape([1, -1, layers.hidden_size]), ov.Type.f32)
    for port in layers.edges[-1].output(0).get_target_inputs():
        port.replace_source_output(hidden.output(0))
    return ov.Model([layers.result], [hidden], f"{model.get_friendly_name()} (head)")


def trim_head(model: ov.Model, ids: NDArray[np.integer]) -> None:
    """Keep the rows `ids` (ascending) of the head matrix, in place: column i of the logits is then token ids[i]'s.

    The rows are copied as they are stored, compressed or not, and the embedding, which may share them, keeps all of
    its own.

    Raises:
        GraphError: the ids are not some of the rows, or the matrix is stored in a way that rows cannot be told apart.
    """
    matrix = _matrix(model)
    rows = matrix.get_shape()[0]
    if len(ids) == 0 or ids[0] < 0 or ids[-1] >= rows or (np.diff(ids) <= 0).any():
        raise refuse(model, f"the kept tokens are not ascending ids in 0..{rows - 1}", _HINT)
    clone = model.clone()  # its matrix is nobody else's, and its operations know all that plugins read in them
    own = _matrix(clone).get_source_output()
    for node in behind([own.get_node()]).values():
        node.set_friendly_name(f"{node.get_friendly_name()}.kept")
        if (kind := node.get_type_name()) not in _BY_ROW:
            raise refuse(model, f"the head matrix is computed by {kind}, so its rows cannot be picked", _HINT)
        if kind == "Reshape":
            shape = constant(len(ids), *node.get_output_shape(0)[1:])
            shape.set_friendly_name(f"{node.get_friendly_name()}.shape")
            node.input(1).replace_source_output(shape.output(0))
        for port in node.inputs() if kind != "Reshape" else node.inputs()[:1]:
            if (source := port.get_source_output().get_node()).get_type_name() == "Constant":
                port.replace_source_output(_picked(model, source, ids, rows).output(0))
    stored = own.get_node()
    matrix.replace_source_output((_picked(model, stored, ids, rows) if not sources(stored) else stored).output(0))
    try:
        model.validate_nodes_and_infer_types()
    except RuntimeError as error:
        raise refuse(model, f"what follows the head matrix wants all tokens ({error})", _HINT) from None
    width = model.get_results()[0].get_output_partial_shape(0)[-1]
    if width.is_dynamic or width.get_length() != len(ids):
        raise refuse(model, f"its logits are {width} wide with a head of {len(ids)} tokens", _HINT)


def _matrix(model: ov.Model) -> ov.Input:
    """Where the head matrix enters the product that makes the logits."""
    hidden = head_input(model)
    product = hidden.get_node()
    if hidden.get_index() != 0 or not product.get_attributes()["transpose_b"]:
        raise refuse(model, "the head matrix is not stored with a row for each token", _HINT)
    return product.input(1)


def _picked(model: ov.Model, stored: ov.Node, ids: NDArray[np.integer], rows: int) -> ov.Node:
    """A constant of the matrix with the kept rows; one that all rows have in common as it is."""
    shape, kind = list(stored.get_output_shape(0)), stored.get_output_element_type(0)
    if len(shape) < 2 or shape[0] == 1:
        return stored
    if shape[0] != rows or stored.get_byte_size() % rows:
        raise refuse(model, f"the head matrix is made from a constant {kind.get_type_name()} {shape}", _HINT)
    packed = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8).reshape(rows, -1)
    tensor = ov.Tensor(np.ascontiguousarray(packed[ids]), ov.Shape([len(ids), *shape[1:]]), kind)
    made = ov.op.Constant(tensor, shared_memory=False)
    made.set_friendly_name(f"{stored.get_friendly_name()}.kept")
    return made
