"""Preparing a stage for its engine: paged attention, and logits of the wanted rows only."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov
from openvino import opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from shards.graph.cut import STAGE_INPUT
from shards.graph.nodes import constant, refuse, sources

OUTPUT_ROWS = "output_rows"


def make_paged(stage: ov.Model) -> None:
    """Turn the KV states of a stage into PagedAttention blocks, in place.

    Inputs become flat: `input_ids` [rows] or `inputs_embeds` [rows, hidden size], `position_ids` [rows], `past_lens`,
    `subsequence_begins`, `block_indices`, `block_indices_begins`, the scalar `max_context_len`, and `key_cache.N`,
    `value_cache.N` for N counted from the stage's first layer. The tail takes i32 `output_rows` [wanted] besides and
    computes logits for these rows only.

    Raises:
        GraphError: OpenVINO cannot transform the graph.
    """
    inner = [port.get_partial_shape()[-1] for port in stage.inputs if STAGE_INPUT in port.names]
    try:
        paged_attention_transformation(stage)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise refuse(stage, f"the graph does not take paged attention ({reason})", "Use the stateful engine.") from None
    if is_tail(stage):
        _gather_rows(stage, axis=0)
    for parameter in stage.get_parameters():
        if STAGE_INPUT in parameter.output(0).names:  # the width got lost; without it the first norm is not fused
            parameter.set_partial_shape(ov.PartialShape([-1, *inner]))
    stage.validate_nodes_and_infer_types()


def gather_output_rows(stage: ov.Model) -> None:
    """Give a stateful tail an i32 input `output_rows` [wanted]: logits become [batch, wanted, vocabulary].

    Does nothing to a stage without logits. Without it a prefill pays for the logits of every row.
    """
    if is_tail(stage):
        _gather_rows(stage, axis=1)


def is_tail(stage: ov.Model) -> bool:
    """Whether a stage makes logits."""
    return any("logits" in port.names for port in stage.outputs)


def _gather_rows(stage: ov.Model, axis: int) -> None:
    head = _head(stage)
    rows = op.parameter(ov.PartialShape([-1]), ov.Type.i32, name=OUTPUT_ROWS)
    rows.output(0).set_names({OUTPUT_ROWS})
    picked = op.gather(head.input_value(0), rows, op.constant(axis, ov.Type.i64))
    head.input(0).replace_source_output(picked.output(0))
    stage.add_parameters([rows])
    stage.validate_nodes_and_infer_types()


def _head(stage: ov.Model) -> ov.Node:
    """The matrix product that makes the logits: the nearest one behind the result on the data's way.

    Scaling, soft-capping or a cast may follow it. Their other operands are constants, so going back along the
    operands that are not constant leads to it.
    """
    node = stage.get_results()[0]
    while node.get_type_name() != "MatMul":
        moving = [source for source in sources(node) if not _is_constant(source)]
        if len(moving) != 1:
            raise refuse(stage, f"no head matrix was found before the logits (stopped at {node.get_friendly_name()})")
        node = moving[0]
    return node


def _is_constant(node: ov.Node) -> bool:
    while node.get_type_name() != "Constant":
        inputs = sources(node)
        if len(inputs) != 1:
            return bool(inputs) and all(_is_constant(source) for source in inputs)
        node = inputs[0]
    return True


@dataclass(frozen=True)
class CachePort:
    """One KV cache input of a compiled paged stage, in the layout the device chose."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]
    """Shape of one block: the port's shape without the leading number of blocks."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        size = self.element_type.bitwidth
        for dim in self.block_shape:
            size *= dim
        return size // 8


def cache_ports(compiled: ov.CompiledModel) -> tuple[CachePort, ...]:
    """The KV cache inputs of a compiled paged stage, keys and values."""
    ports = []
    for port in compiled.inputs:
        name = next(iter(port.names))
        if name.startswith(("key_cache.", "value_cache.")):
            shape = tuple(dim.get_length() for dim in list(port.partial_shape)[1:])
            ports.append(CachePort(name, port.element_type, shape))
    return tuple(ports)


def block_tokens(ports: tuple[CachePort, ...]) -> int:
    """Tokens in a block. Keys may be stored transposed or with scales beside them; values always count tokens here."""
    return next(port.block_shape[1] for port in ports if port.name.startswith("value_cache."))
