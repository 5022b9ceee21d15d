"""Paged attention: a stage's KV states become blocks that many sequences share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

from shards.device import reason
from shards.graph.cut import STAGE_INPUT
from shards.graph.nodes import refuse
from shards.graph.rows import gather_rows, is_tail
from shards.graph.waist import ATTENTION


def make_paged(stage: ov.Model) -> None:
    """Turn the KV states of a stage into PagedAttention blocks, in place.

    Inputs become flat: `input_ids` [rows] or `inputs_embeds` [rows, hidden size], `position_ids` [rows], `past_lens`,
    `subsequence_begins`, `block_indices`, `block_indices_begins`, the scalar `max_context_len`, and `key_cache.N`,
    `value_cache.N` for N counted from the stage's first layer. The tail takes i32 `output_rows` [wanted] besides and
    computes logits for these rows only.

    Raises:
        GraphError: OpenVINO cannot transform the graph.
    """
    hidden = [parameter for parameter in stage.get_parameters() if STAGE_INPUT in parameter.output(0).names]
    widths = [parameter.get_partial_shape()[2] for parameter in hidden]
    try:
        paged_attention_transformation(stage)
    except RuntimeError as error:
        raise refuse(
            stage, f"the graph does not take paged attention ({reason(error)})", "Use the stateful engine."
        ) from None
    left = {node.get_type_name() for node in stage.get_ops()} & {ATTENTION, "ReadValue"}
    if left:
        raise refuse(stage, f"paged attention leaves {' and '.join(sorted(left))} behind", "Use the stateful engine.")
    # the transformation forgets the width, and without it the plugin does not fuse the first norm
    for parameter, width in zip(hidden, widths, strict=True):
        parameter.set_partial_shape(ov.PartialShape([-1, width]))
    if is_tail(stage):
        gather_rows(stage, axis=0)
    stage.validate_nodes_and_infer_types()


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
        return prod(self.block_shape) * int(self.element_type.bitwidth) // 8


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
