import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from tiny_gguf import vocabulary, write_tiny_gguf

from exporters.sources import gguf
from exporters.sources.gguf_file import read_gguf
from shards.progress import silent

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_model.py"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    tokenizer = folder / "tokenizer.gguf"
    if not tokenizer.exists():
        write_tiny_gguf(tokenizer)
    command = [sys.executable, str(SCRIPT), "-o", str(folder / "made.gguf"), "--tokenizer", str(tokenizer), *options]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("quantisation", ["Q4_1", "Q4_0"])
def test_genai_reads_it_and_the_logits_look_like_a_models(tmp_path: Path, quantisation: str) -> None:
    done = run(tmp_path, "--layers", "3", "--hidden", "256", "--quantisation", quantisation)
    assert done.returncode == 0, done.stderr
    assert "3 layers, hidden 256, 4 heads, 1 KV heads" in done.stdout
    (tmp_path / "work").mkdir()
    made = gguf.prepare(tmp_path / "made.gguf", tmp_path / "work", "keep", silent)
    assert (made.facts.layers, made.facts.hidden_size, made.facts.kv_heads, made.facts.head_size) == (3, 256, 1, 64)
    assert made.facts.vocabulary == len(vocabulary())
    assert made.facts.weights.startswith("int4")
    ids = np.random.default_rng(0).integers(3, len(vocabulary()), 64)
    request = ov.Core().compile_model(made.graph, "CPU").create_infer_request()
    request.infer(
        {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, 64), np.int64),
            "position_ids": np.arange(64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )
    logits = request.get_output_tensor(0).data[0]
    assert np.isfinite(logits).all()
    assert 1 < logits.std(-1).mean() < 5
    top = logits.argmax(-1)
    assert len(np.unique(top)) > 16  # not the same token whatever went before
    assert (top == ids).mean() < 0.8  # nor only an echo


def test_the_same_seed_makes_the_same_file(tmp_path: Path) -> None:
    size = ("--layers", "1", "--hidden", "64")
    contents = []
    for seed in ("0", "0", "1"):
        assert run(tmp_path, *size, "--seed", seed).returncode == 0
        contents.append((tmp_path / "made.gguf").read_bytes())
    assert contents[0] == contents[1] != contents[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.gguf", "tokenizer.gguf"]


def test_a_size_is_met(tmp_path: Path) -> None:
    assert run(tmp_path, "--parameters", "20M").returncode == 0
    file = read_gguf(tmp_path / "made.gguf")
    assert sum(tensor.elements for tensor in file.tensors) == pytest.approx(20e6, rel=0.2)
    keys = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template", "tokenizer.ggml.pre")
    original = read_gguf(tmp_path / "tokenizer.gguf")
    assert [file.metadata[key] for key in keys] == [original.metadata[key] for key in keys]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hidden", "100"), "100 is not a multiple of the head size, 64"),
        (("--layers", "0"), "0 layers are too few"),
        (("--parameters", "many"), "'many' is not a size like 1B"),
        (("--tokenizer", "nowhere.gguf"), "nowhere.gguf"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, *options)
    assert done.returncode != 0
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made.gguf").exists()
