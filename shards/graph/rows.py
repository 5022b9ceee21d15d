"""Logits of the wanted rows only: without it a prefill pays for vocabulary times rows."""

from __future__ import annotations

import openvino as ov
from openvino import opset13 as op

from shards.graph.nodes import refuse, sources
from shards.graph.waist import main_path, token_input, waists

OUTPUT_ROWS = "output_rows"
HIDDEN_ROWS = "hidden_rows"


def gather_output_rows(stage: ov.Model) -> None:
    """Give a stateful tail an i32 input `output_rows` [wanted]: its logits become [batch, wanted, vocabulary].

    Does nothing to a stage without logits.

    Raises:
        GraphError: No matrix product makes all the logits.
    """
    if is_tail(stage):
        gather_rows(stage, axis=1)
        stage.validate_nodes_and_infer_types()


def is_tail(stage: ov.Model) -> bool:
    """Whether a stage makes logits."""
    return any("logits" in port.names for port in stage.outputs)


def gather_rows(stage: ov.Model, axis: int) -> None:
    """Pick the rows named by a new input `output_rows` along `axis` before the head."""
    port = head_input(stage)
    rows = op.parameter(ov.PartialShape([-1]), ov.Type.i32, name=OUTPUT_ROWS)
    rows.output(0).set_names({OUTPUT_ROWS})
    picked = op.gather(port.get_source_output(), rows, op.constant(axis, ov.Type.i64))
    port.replace_source_output(picked.output(0))
    stage.add_parameters([rows])


def output_hidden_rows(stage: ov.Model, hidden: ov.Node, axis: int) -> None:
    """Give a stage that takes `output_rows` a second output: these rows of `hidden`, along `axis`."""
    rows = next(parameter for parameter in stage.get_parameters() if OUTPUT_ROWS in parameter.output(0).names)
    picked = op.gather(hidden.output(0), rows, op.constant(axis, ov.Type.i64))
    picked.output(0).set_names({HIDDEN_ROWS})
    stage.add_results([op.result(picked, name=HIDDEN_ROWS)])
    stage.validate_nodes_and_infer_types()


def head_input(stage: ov.Model) -> ov.Input:
    """Where the hidden state enters the matrix product that makes the logits: the last one that all data passes.

    Scaling, soft-capping or a cast may follow it.
    """
    path = main_path(stage, token_input(stage), stage.get_results()[0])
    products = [node for node in path if node.get_type_name() == "MatMul"]
    passed = {node.get_name() for _, node in waists(path)}
    if not products or products[-1].get_name() not in passed:
        raise refuse(stage, "no single matrix product makes the logits", "The graph has no head that rows can skip.")
    on_path = {node.get_name() for node in path}
    operands = zip(products[-1].inputs(), sources(products[-1]), strict=True)
    return next(port for port, source in operands if source.get_name() in on_path)
