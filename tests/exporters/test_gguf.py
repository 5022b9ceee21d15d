"""Tiny GGUF files through both converters, which are independent of each other: their graphs must agree."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
import tiny_gguf
from numpy.typing import NDArray
from tiny_gguf import write_tiny_gguf

from exporters import agreement, workspace
from exporters.sources import PreparedSource, Weights, compression, gguf
from shards.errors import CapacityError, ExportError
from shards.progress import silent

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
IDS = np.random.default_rng(1).integers(3, len(tiny_gguf.vocabulary()), 90)


def prepare(folder: Path, weights: Weights | None, **options: Any) -> PreparedSource:
    path = write_tiny_gguf(folder / "tiny.gguf", **options)
    (folder / "work").mkdir()
    return gguf.prepare(path, folder / "work", weights, silent)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> PreparedSource:
    return prepare(tmp_path_factory.mktemp("kept"), "keep")


@pytest.fixture(scope="module")
def dequantised(tmp_path_factory: pytest.TempPathFactory) -> PreparedSource:
    return prepare(tmp_path_factory.mktemp("dequantised"), "fp16")


def logits(graph: Path, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    request = ov.Core().compile_model(graph, "CPU", EXACT).create_infer_request()
    request.infer(
        {
            "input_ids": IDS[None],
            "attention_mask": np.ones((1, len(IDS)), np.int64),
            "position_ids": positions[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )
    return np.array(request.get_output_tensor(0).data[0])


def test_both_converters_read_the_same_model(kept: PreparedSource, dequantised: PreparedSource) -> None:
    assert agreement.compare(dequantised.graph, kept.graph, IDS).divergence < 2e-4


def test_facts(kept: PreparedSource, dequantised: PreparedSource) -> None:
    facts = kept.facts
    assert (facts.name, facts.architecture) == ("tiny", "llama")
    assert (facts.layers, facts.hidden_size) == (tiny_gguf.LAYERS, tiny_gguf.HIDDEN)
    assert (facts.kv_heads, facts.head_size) == (tiny_gguf.KV_HEADS, tiny_gguf.HEAD_SIZE)
    assert (facts.vocabulary, facts.context_length) == (len(tiny_gguf.vocabulary()), tiny_gguf.CONTEXT)
    assert facts.stop_tokens == (0, 2)  # the file's end of text, and what its chat template ends turns with
    assert (facts.bos_token, facts.bos_text, facts.eos_text) == (1, "<|im_start|>", "<|endoftext|>")
    assert facts.chat_template == tiny_gguf.CHAT_TEMPLATE
    assert facts.weights == "int8 asym, group 32"
    assert dequantised.facts == facts.model_copy(update={"weights": "fp16"})


def test_the_folder_of_the_file_is_left_alone(kept: PreparedSource, dequantised: PreparedSource) -> None:
    for source in (kept, dequantised):
        folder = Path(source.description["path"]).parent
        assert sorted(path.name for path in folder.iterdir()) == ["tiny.gguf", "work"]
        assert source.graph.is_relative_to(folder / "work")


def test_rotary_factors_are_applied(dequantised: PreparedSource, tmp_path: Path) -> None:
    """Frequencies divided by 2 at positions 0, 2, 4 ... are undivided ones at 0, 1, 2 ..."""
    scaled = prepare(tmp_path, "fp16", rope_factors=2.0)
    positions = np.arange(len(IDS), dtype=np.int64)
    right = logits(dequantised.graph, positions)
    assert np.abs(logits(scaled.graph, 2 * positions) - right).max() < 1e-3
    assert np.abs(logits(scaled.graph, positions) - right).max() > 0.1


def test_a_kind_that_genai_refuses_is_compressed_instead(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="conversion failed") as caught:
        prepare(tmp_path, "keep", stored="Q5_0")
    message = str(caught.value)
    assert "tiny.gguf (architecture llama, tensors Q5_0, F32)" in message
    assert "--weights int4" in message
    (tmp_path / "again").mkdir()
    made = gguf.prepare(tmp_path / "tiny.gguf", tmp_path / "again", "int4", silent)
    assert made.facts.weights.startswith("int4 sym")
    assert made.description["tokens_compared"] > 300
    assert 0 < made.description["same_top_token"] <= 1
    assert not (tmp_path / "again" / "original").exists()


def test_what_genai_would_read_wrongly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"rope_freqs\.weight.*--weights int4"):
        prepare(tmp_path, "keep", rope_factors=8.0)


@pytest.mark.parametrize("weights", ["keep", "int4"])
def test_a_scaling_that_nobody_reads_is_refused(tmp_path: Path, weights: Weights) -> None:
    with pytest.raises(ExportError, match="rotary positions"):
        prepare(tmp_path, weights, metadata={"llama.rope.scaling.type": "yarn"})


@pytest.mark.parametrize("weights", ["keep", "int4", "fp16"])
def test_a_full_disk_is_refused_before_the_conversion(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CapacityError, match=r"too full: .* wanted, 0 MB free"):
        prepare(tmp_path, weights)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="architecture nonesuch, tensors Q8_0, F32") as caught:
        prepare(tmp_path, "keep", architecture="nonesuch")
    assert "--weights int4" in str(caught.value)


def test_without_the_extra_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_EXTRA", ("nncf", "no_such_package"))
    assert prepare(tmp_path, None).facts.weights == "int8 asym, group 32"
    (tmp_path / "again").mkdir()
    with pytest.raises(ExportError, match=r"not installed: no_such_package.*pip install \"edge-agent\[export\]\""):
        gguf.prepare(tmp_path / "tiny.gguf", tmp_path / "again", "int4", silent)
