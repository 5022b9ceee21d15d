"""A trimmed head: its logits are the whole head's columns, however the matrix is stored and whoever shares it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from decoder import VOCABULARY, Decoder
from numpy.typing import NDArray
from openvino import opset13 as op
from zoo import family_ir, family_reference

from shards.errors import GraphError
from shards.graph import trim_head
from shards.graph.rows import head_input

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
ROWS, WIDTH = 48, 64
KEPT = np.array([0, 2, 3, 17, 31, 40, 47])


def logits(model: ov.Model, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    feed = {
        "input_ids": tokens[None],
        "attention_mask": np.ones((1, len(tokens)), np.int64),
        "position_ids": np.arange(len(tokens))[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    names = {name for port in model.inputs for name in port.names}
    request.infer({name: value for name, value in feed.items() if name in names})
    found: NDArray[np.float32] = request.get_output_tensor(0).data[0].copy()
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "granite"])
def test_logits_are_the_whole_models_columns(family: str) -> None:
    """granite divides its logits and, like qwen2, has one matrix for embedding and head."""
    graph = family_ir(family) / "openvino_model.xml"
    tokens, wanted = family_reference(family)[1]
    ids = np.unique(np.random.default_rng(0).integers(0, wanted.shape[1], 100))
    model = ov.Core().read_model(graph)
    whole = logits(model, tokens)
    trim_head(model, ids)
    found = logits(model, tokens)
    assert found.shape == (len(tokens), len(ids))
    assert np.abs(found - whole[:, ids]).max() <= 1e-5 * np.abs(whole).max()
    assert np.abs(found - wanted[:, ids]).max() <= 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", [ov.Type.u4, ov.Type.i4, ov.Type.u8, ov.Type.i8, ov.Type.f16, ov.Type.bf16])
def test_compressed_rows_are_copied_as_they_are_stored(kind: ov.Type, tmp_path: Path) -> None:
    model = with_head(kind)
    tokens = np.arange(20) % VOCABULARY
    whole = logits(model, tokens)
    trim_head(model, KEPT)
    ov.serialize(model, tmp_path / "graph.xml")
    again = ov.Core().read_model(tmp_path / "graph.xml")
    assert np.array_equal(logits(again, tokens).argsort(-1), whole[:, KEPT].argsort(-1))
    assert np.abs(logits(again, tokens) - whole[:, KEPT]).max() <= 1e-4 * np.abs(whole).max()
    constants = [node for node in again.get_ops() if node.get_type_name() == "Constant"]
    stored = {(node.get_output_element_type(0), *list(node.get_output_shape(0))[:1]) for node in constants}
    assert (kind, len(KEPT)) in stored
    assert ROWS not in {shape[0] for _, *shape in stored if shape}, "nothing has all of the rows any more"


def with_head(kind: ov.Type) -> ov.Model:
    """The hand-written decoder with a head matrix of ROWS rows, stored as `kind` with a scale for 32 weights."""
    model = Decoder().build()
    result = model.get_results()[0]
    hidden = head_input(model).get_source_output().get_node()
    random = np.random.default_rng(1)
    wide = op.matmul(hidden, op.constant(random.normal(0, 1, (16, WIDTH)).astype(np.float32)), False, False)
    if kind in (ov.Type.f16, ov.Type.bf16):
        stored = ov.op.Constant(kind, ov.Shape([ROWS, WIDTH]), random.normal(0, 1, ROWS * WIDTH).tolist())
        matrix = op.convert(stored, "f32")
    else:
        shape, groups = ov.Shape([ROWS, WIDTH // 32, 32]), [ROWS, WIDTH // 32, 1]
        raw = random.integers(0, 256, ROWS * WIDTH * kind.bitwidth // 8).astype(np.uint8)
        matrix = op.convert(ov.op.Constant(ov.Tensor(raw, shape, kind), shared_memory=False), "f16")
        if kind in (ov.Type.u4, ov.Type.u8):
            zero = op.convert(op.constant(random.integers(0, 16, groups).astype(np.uint8)), "f16")
            matrix = op.subtract(matrix, zero)
        matrix = op.multiply(matrix, op.constant(random.uniform(0.01, 0.1, groups).astype(np.float16)))
        matrix = op.convert(op.reshape(matrix, op.constant(np.array([ROWS, WIDTH])), False), "f32")
    made = op.matmul(wide, matrix, False, True)
    made.output(0).set_names({"logits"})
    result.input(0).get_source_output().set_names(set())
    result.input(0).replace_source_output(made.output(0))
    model.validate_nodes_and_infer_types()
    return model


@pytest.mark.parametrize("ids", [[], [3, 2], [1, 1], [-1, 2], [5, ROWS]])
def test_ids_that_are_none_are_refused(ids: list[int]) -> None:
    with pytest.raises(GraphError, match=r"ascending ids in 0\.\.47"):
        trim_head(with_head(ov.Type.f16), np.array(ids, np.int64))


def test_a_matrix_without_a_row_for_each_token_is_refused() -> None:
    with pytest.raises(GraphError, match="not stored with a row for each token"):
        trim_head(Decoder().build(), KEPT)


def test_a_computed_matrix_is_refused() -> None:
    model = with_head(ov.Type.f16)
    matrix = head_input(model).get_node().input(1)
    matrix.replace_source_output(op.relu(matrix.get_source_output()).output(0))
    with pytest.raises(GraphError, match="computed by Relu"):
        trim_head(model, KEPT)
