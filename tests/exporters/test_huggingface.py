"""Tiny random Hugging Face folders, written without torch: the conversion itself runs in its child process."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_gguf import CHAT_TEMPLATE, MERGES, SPECIAL, vocabulary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from exporters.sources import PreparedSource, Weights, compression, huggingface
from shards.errors import ExportError
from shards.progress import silent

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 128, 2, 4, 2, 192
HEAD_SIZE = HIDDEN // HEADS
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "vocab_size": len(vocabulary()),
    "bos_token_id": 1,
    "eos_token_id": 0,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def write_folder(folder: Path, *, with_tokenizer: bool = True, with_weights: bool = True, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}), "utf-8")
    if with_tokenizer:
        write_tokenizer(folder)
    if with_weights:
        save_file(random_weights(), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_tokenizer(folder: Path) -> None:
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary())}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|endoftext|>",
        "model_max_length": 256,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")


def random_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    kv = KV_HEADS * HEAD_SIZE
    weights = {
        "model.embed_tokens.weight": rng.normal(0, 0.3, (len(vocabulary()), HIDDEN)).astype(np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": np.ones(HIDDEN, np.float32),
                "post_attention_layernorm": np.ones(HIDDEN, np.float32),
                "self_attn.q_proj": matrix(HIDDEN, HIDDEN),
                "self_attn.k_proj": matrix(kv, HIDDEN),
                "self_attn.v_proj": matrix(kv, HIDDEN),
                "self_attn.o_proj": matrix(HIDDEN, HIDDEN),
                "mlp.gate_proj": matrix(FFN, HIDDEN),
                "mlp.up_proj": matrix(FFN, HIDDEN),
                "mlp.down_proj": matrix(HIDDEN, FFN),
            }.items()
        }
    return weights


def prepare(source: str | Path, workdir: Path, weights: Weights | None = None) -> PreparedSource:
    workdir.mkdir()
    return huggingface.prepare(str(source), workdir, weights, silent)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> PreparedSource:
    folder = tmp_path_factory.mktemp("huggingface")
    return prepare(write_folder(folder / "tiny"), folder / "work")


def test_int4_is_the_default_with_groups_that_fit(compressed: PreparedSource) -> None:
    # rows of 128 are one group, rows of 192 have three groups of 64
    assert compressed.facts.weights == "int4 sym, group 64 + int8 sym, per channel"
    assert compressed.description["tokens_compared"] > 300
    assert compressed.description["same_top_token"] > 0.5
    assert 0 < compressed.description["kl_divergence_nats"] < 1


def test_facts(compressed: PreparedSource) -> None:
    facts = compressed.facts
    assert (facts.name, facts.architecture) == ("tiny", "llama")
    assert (facts.layers, facts.hidden_size, facts.kv_heads, facts.head_size) == (LAYERS, HIDDEN, KV_HEADS, HEAD_SIZE)
    assert (facts.vocabulary, facts.context_length) == (len(vocabulary()), 256)
    assert facts.stop_tokens == (0, 2)
    assert (facts.bos_token, facts.bos_text, facts.eos_text) == (1, "<|im_start|>", "<|endoftext|>")
    assert facts.chat_template == CHAT_TEMPLATE


def test_the_files_are_in_the_work_folder(compressed: PreparedSource) -> None:
    source = Path(compressed.description["path"])
    assert sorted(path.name for path in source.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    work = source.parent / "work"
    assert compressed.tokenizer is not None
    assert compressed.detokenizer is not None
    for path in (compressed.graph, compressed.weights, compressed.tokenizer, compressed.detokenizer):
        assert path.is_file()
        assert path.is_relative_to(work)
    assert not (work / "original").exists()


def test_keep_is_the_precision_of_the_source(tmp_path: Path) -> None:
    made = prepare(write_folder(tmp_path / "tiny"), tmp_path / "work", "keep")
    assert made.facts.weights == "fp32"
    assert "kl_divergence_nats" not in made.description


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", with_tokenizer=False)
    with pytest.raises(ExportError, match=r"tokenizer is missing: none of tokenizer\.json") as caught:
        prepare(folder, tmp_path / "work")
    assert caught.value.where == str(folder)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text("{", "utf-8")
    with pytest.raises(ExportError, match="tokenizer cannot be converted"):
        prepare(folder, tmp_path / "work")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", with_weights=False)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ExportError, match="safetensors"):
        prepare(folder, tmp_path / "work")


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    folder = write_folder(
        tmp_path / "tiny",
        model_type="custom",
        auto_map={"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"},
    )
    (folder / "custom.py").write_text(f"open({str(ran)!r}, 'w')\n", "utf-8")
    with pytest.raises(ExportError, match="tiny"):
        prepare(folder, tmp_path / "work")
    assert not ran.exists()


def test_without_the_extra_the_command_to_install_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_EXTRA", ("no_such_package",))
    with pytest.raises(ExportError, match=r"no_such_package.*pip install \"edge-agent\[export\]\""):
        prepare(write_folder(tmp_path / "tiny"), tmp_path / "work")


@pytest.fixture
def hub() -> Iterator[tuple[str, list[int]]]:
    """A hub that answers every request with one status, and where to set it."""
    status = [404]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status[0])
            if status[0] == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            if status[0] == 403:
                self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", status
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "message"), [(404, "no such model on the hub"), (403, "gated")])
def test_a_model_the_hub_does_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: tuple[str, list[int]], status: int, message: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub[0])
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    hub[1][0] = status
    with pytest.raises(ExportError, match=message) as caught:
        prepare("nobody/nothing", tmp_path / "work")
    assert caught.value.where == "nobody/nothing"


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(ExportError, match="hub cannot be reached"):
        prepare("nobody/nothing", tmp_path / "work")
