"""Tiny random models of many decoder families: exact oracles in seconds, with no download.

Each is built by transformers and exported by optimum-intel once for a set of versions, into the user's cache:

    family_ir("llama")          the folder with openvino_model.xml and .bin
    family_reference("llama")   [(token ids [n], transformers' own logits [n, vocabulary])] for several lengths

Building runs in a process of its own, so torch is never loaded into the tests'. `build_families` builds several in
one such process, which is quicker.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

LAYERS = 4
VOCABULARY = 1024
LENGTHS = (5, 33, 70)
"""Tokens of the reference sequences: within a KV block, just over one, and over two."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_theta": 500000.0,
}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3moe": (
        "Qwen3Moe",
        {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
    "gptoss": ("GptOss", {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    "smollm3": ("SmolLM3", {}),
    "olmo2": ("Olmo2", {}),
    "granite": (
        "Granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0, "tie_word_embeddings": True},
    ),
}
FAMILIES = tuple(_FAMILIES)


def family_ir(name: str) -> Path:
    """The folder of a family's OpenVINO IR (openvino_model.xml, .bin), built if it is not there."""
    build_families([name])
    return _folder(name)


def family_reference(name: str) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Token ids [n] and transformers' logits [n, vocabulary], for each n of LENGTHS."""
    with np.load(family_ir(name) / "reference.npz") as stored:
        return [(stored[f"ids_{n}"], stored[f"logits_{n}"]) for n in LENGTHS]


def build_families(names: Sequence[str] = FAMILIES) -> None:
    """Build those of the families that are not in the cache."""
    if all(_folder(name).exists() for name in names):
        return
    from sharing import one_at_a_time

    with one_at_a_time("families"):
        missing = [name for name in names if not _folder(name).exists()]
        if not missing:
            return
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), *missing], capture_output=True, text=True, encoding="utf-8"
        )
    if done.returncode:
        raise RuntimeError(f"building {', '.join(missing)} failed; it needs the extra `export`:\n{done.stderr[-4000:]}")


def _folder(name: str) -> Path:
    versions = [version(package) for package in ("transformers", "optimum-intel", "openvino", "torch")]
    recipe = repr([versions, _SIZES, _FAMILIES[name], LENGTHS])
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return platformdirs.user_cache_path("edge-agent") / "tests" / f"{name}-{key}"


def _build(name: str) -> None:
    import torch
    import transformers
    from optimum.exporters.openvino import main_export

    prefix, extra = _FAMILIES[name]
    config = getattr(transformers, f"{prefix}Config")(**_SIZES, **extra)
    make: Callable[[Any], Any] = getattr(transformers, f"{prefix}ForCausalLM")
    torch.manual_seed(0)
    model = make(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    random = np.random.default_rng(0)
    reference: dict[str, NDArray[Any]] = {}
    for n in LENGTHS:
        ids = random.integers(3, VOCABULARY, n)
        with torch.no_grad():
            logits = model(torch.tensor(ids[None])).logits[0].numpy()
        reference |= {f"ids_{n}": ids, f"logits_{n}": logits}
    target = _folder(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        source, built = Path(scratch, "hf"), Path(scratch, "ir")
        model.save_pretrained(source)
        main_export(source, built, task="text-generation-with-past", stateful=True, convert_tokenizer=False)
        np.savez(built / "reference.npz", **reference)
        try:
            built.replace(target)
        except OSError:
            if not target.exists():  # else another run was quicker, and made the same
                raise
            shutil.rmtree(built)


if __name__ == "__main__":
    for family in sys.argv[1:]:
        _build(family)
