"""What a paged stage looks like to its engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from cut_chains import EXACT, Graph, infer
from zoo import LAYERS, VOCABULARY, family_ir

from shards.graph import block_tokens, cache_ports, cut_stage, make_paged


@pytest.fixture(scope="module")
def xml() -> Path:
    return family_ir("llama") / "openvino_model.xml"


def compiled(xml: Path, first: float, end: float) -> ov.CompiledModel:
    core = ov.Core()
    stage = cut_stage(core.read_model(xml), first, end)
    make_paged(stage)
    return core.compile_model(stage, "CPU", EXACT)


def count(model: ov.CompiledModel, kind: str) -> int:
    """Operations of a type in what the plugin runs."""
    ops = model.get_runtime_model().get_ops()
    return sum(op.get_rt_info()["layerType"].astype(str) == kind for op in ops)


def test_cache_ports_tell_the_layout_of_a_block(xml: Path) -> None:
    ports = cache_ports(compiled(xml, 1, 3))
    assert sorted(port.name for port in ports) == ["key_cache.0", "key_cache.1", "value_cache.0", "value_cache.1"]
    assert {port.element_type for port in ports} == {ov.Type.f32}
    tokens = block_tokens(ports)
    assert {port.block_shape for port in ports} == {(2, tokens, 32)}  # KV heads, tokens, head size
    assert {port.block_bytes for port in ports} == {2 * tokens * 32 * 4}


def test_block_size_is_known_where_the_cache_is_quantised(xml: Path) -> None:
    core = ov.Core()
    stage = cut_stage(core.read_model(xml), 0, 1)
    make_paged(stage)
    quantised = cache_ports(core.compile_model(stage, "CPU", {"KV_CACHE_PRECISION": "u8"}))
    assert block_tokens(quantised) == block_tokens(cache_ports(compiled(xml, 0, 1)))


@pytest.mark.parametrize("edge", [2, 1.5])
def test_split_loses_no_fusion(xml: Path, edge: float) -> None:
    """The plugin's own fusions must find in the stages what they find in the whole."""
    whole = compiled(xml, 0, LAYERS)
    stages = [compiled(xml, 0, edge), compiled(xml, edge, LAYERS)]
    for kind in ("RMS", "RoPE", "PagedAttention", "FullyConnected"):
        assert sum(count(stage, kind) for stage in stages) == count(whole, kind) > 0


def test_only_wanted_rows_get_logits(xml: Path) -> None:
    graph = Graph(xml)
    ids = np.arange(10, 16)

    def logits(rows: list[int]) -> np.ndarray:
        feed = {
            "input_ids": ids,
            "position_ids": np.arange(6),
            "past_lens": np.zeros(1, np.int32),
            "subsequence_begins": np.array([0, 6], np.int32),
            "block_indices": np.zeros(1, np.int32),
            "block_indices_begins": np.array([0, 1], np.int32),
            "max_context_len": np.array(6, np.int32),
            "output_rows": np.array(rows, np.int32),
        }
        return infer(graph.paged(0, LAYERS), feed)

    everything = logits([0, 1, 2, 3, 4, 5])
    assert everything.shape == (6, VOCABULARY)
    assert np.array_equal(logits([5, 2]), everything[[5, 2]])
    assert logits([]).shape == (0, VOCABULARY)
