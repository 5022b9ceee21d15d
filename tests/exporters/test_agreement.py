from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from tiny_gguf import vocabulary, write_tiny_gguf

from exporters import agreement
from exporters.sources import PreparedSource, gguf
from shards.errors import ExportError
from shards.progress import silent

IDS = np.random.default_rng(0).integers(3, len(vocabulary()), 150)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[PreparedSource]:
    """Two models with different random weights."""
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"seed{seed}")
        path = write_tiny_gguf(folder / "tiny.gguf", seed=seed)
        made.append(gguf.prepare(path, folder, "keep", silent))
    return made


def logits(graph: Path) -> NDArray[np.float64]:
    """Of all rows at once, where `agreement` runs chunks."""
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    request = ov.Core().compile_model(graph, "CPU", exact).create_infer_request()
    request.infer(
        {
            "input_ids": IDS[None],
            "attention_mask": np.ones((1, len(IDS)), np.int64),
            "position_ids": np.arange(len(IDS))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )
    return np.array(request.get_output_tensor(0).data[0], np.float64)


def test_a_model_agrees_with_itself(sources: list[PreparedSource]) -> None:
    found = agreement.compare(sources[0].graph, sources[0].graph, IDS)
    assert found == agreement.Agreement(len(IDS), 1.0, pytest.approx(0, abs=1e-9))


def test_the_numbers_are_what_the_definitions_say(sources: list[PreparedSource]) -> None:
    found = agreement.compare(sources[0].graph, sources[1].graph, IDS)
    right, got = logits(sources[0].graph), logits(sources[1].graph)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (right, got))
    assert found.top1 == (right.argmax(-1) == got.argmax(-1)).mean()
    assert found.divergence == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-4)
    assert found.divergence > 0.1
    assert found.summary() == {
        "same_top_token": round(found.top1, 4),
        "kl_divergence_nats": round(found.divergence, 5),
        "tokens_compared": len(IDS),
    }


def test_progress_counts_the_tokens_of_both(sources: list[PreparedSource]) -> None:
    reports: list[tuple[float, float]] = []
    agreement.compare(sources[0].graph, sources[1].graph, IDS, lambda _, done, total: reports.append((done, total)))
    assert reports == sorted(reports)
    assert reports[0] == (0, 300)
    assert reports[-1] == (300, 300)


def test_a_tokenizer_of_another_model_is_found_out(sources: list[PreparedSource]) -> None:
    with pytest.raises(ExportError, match=f"token {len(vocabulary())}, the model knows {len(vocabulary())} tokens"):
        agreement.compare(sources[0].graph, sources[1].graph, np.array([1, len(vocabulary())]))


def test_the_text_is_long_and_varied(smollm2_package: Path) -> None:
    from shards.manifest import TOKENIZER

    ids = agreement.tokenise(smollm2_package / TOKENIZER)
    assert 300 < len(ids) < 600
    assert len(np.unique(ids)) > 200
