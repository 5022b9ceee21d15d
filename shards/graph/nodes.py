"""Walking an OpenVINO graph. Nodes are keyed by `get_name()`, which is unique; friendly names need not be."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import openvino as ov
from openvino import opset13 as op

from shards.errors import GraphError


def sources(node: ov.Node) -> list[ov.Node]:
    """The nodes whose outputs `node` reads."""
    return [value.get_node() for value in node.input_values()]


def readers(node: ov.Node) -> list[ov.Node]:
    """The nodes that read an output of `node`."""
    return [port.get_node() for output in node.outputs() for port in output.get_target_inputs()]


def behind(roots: Iterable[ov.Node], stops: Iterable[str] = ()) -> dict[str, ov.Node]:
    """Everything the roots are computed from, roots included, by name; does not go past the nodes named in `stops`."""
    stopped = set(stops)
    seen: dict[str, ov.Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        name = node.get_name()
        if name not in seen:
            seen[name] = node
            if name not in stopped:
                stack += sources(node)
    return seen


def constant(*values: int) -> ov.Node:
    """An i64 vector."""
    return op.constant(np.array(values, np.int64))


def refuse(model: ov.Model, what: str, hint: str = "This model cannot be split into stages.") -> GraphError:
    """The error for a graph that cannot be cut; whoever reads a graph from a file gives it the path as its name."""
    return GraphError(what, where=str(model.get_friendly_name()), hint=hint)
