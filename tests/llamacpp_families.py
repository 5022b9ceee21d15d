"""Tiny random GGUFs of families that the llama writer cannot make, in f32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, FFN, VOCABULARY, CONTEXT = 64, 4, 2, 128, 1024, 512
KV = KV_HEADS * HIDDEN // HEADS


def write_olmo2(path: Path, layers: int, window: int) -> Path:
    """Norms behind attention and MLP, a head matrix of its own, and of four layers three with a sliding window."""
    return _write(
        path,
        "olmo2",
        layers,
        {"attention.sliding_window": window},
        {
            "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
            "attn_q_norm": (HIDDEN,), "attn_k_norm": (KV,),
            "post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,),
            "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN),
        },
        {"output": (VOCABULARY, HIDDEN)},
    )  # fmt: skip


def write_llama_like(path: Path, architecture: str, layers: int, extra: dict[str, Any] | None = None) -> Path:
    """What has the tensors of a llama: granite (scales its embedding), smollm3 (turns only three of four layers)."""
    return _write(
        path,
        architecture,
        layers,
        extra or {},
        {
            "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV, HIDDEN), "attn_v": (KV, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,),
            "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN),
        },
        {},
    )  # fmt: skip


def write_gpt2(path: Path, layers: int) -> Path:
    """Adds a position to whatever comes in, so its stages cannot hand on hidden states."""
    return _write(
        path,
        "gpt2",
        layers,
        {"attention.layer_norm_epsilon": 1e-5},
        {
            "attn_qkv": (3 * HIDDEN, HIDDEN), "attn_qkv.bias": (3 * HIDDEN,),
            "attn_output": (HIDDEN, HIDDEN), "attn_output.bias": (HIDDEN,),
            "attn_norm": (HIDDEN,), "attn_norm.bias": (HIDDEN,), "ffn_norm": (HIDDEN,), "ffn_norm.bias": (HIDDEN,),
            "ffn_up": (FFN, HIDDEN), "ffn_up.bias": (FFN,), "ffn_down": (HIDDEN, FFN), "ffn_down.bias": (HIDDEN,),
        },
        {"position_embd": (CONTEXT, HIDDEN), "output_norm.bias": (HIDDEN,)},
        kv_heads=HEADS,
    )  # fmt: skip


def _write(
    path: Path,
    architecture: str,
    layers: int,
    extra: dict[str, Any],
    of_layer: dict[str, tuple[int, ...]],
    others: dict[str, tuple[int, ...]],
    kv_heads: int = KV_HEADS,
) -> Path:
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    entries: dict[str, Any] = {
        "block_count": layers, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": FFN,
        "attention.head_count": HEADS, "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": HIDDEN // HEADS, **extra,
    }  # fmt: skip
    for key, value in entries.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", [f"<{number}>" for number in range(VOCABULARY)])
    writer.add_array("tokenizer.ggml.token_type", [1] * VOCABULARY)
    writer.add_array("tokenizer.ggml.merges", ["a b"])

    def add_tensor(name: str, shape: tuple[int, ...]) -> None:
        name = name if name.endswith(".bias") else f"{name}.weight"
        norm = "norm" in name and not name.endswith(".bias")
        values = random.uniform(0.5, 1.5, shape) if norm else random.normal(0, 1 / shape[-1] ** 0.5, shape)
        writer.add_tensor(name, values.astype(np.float32))

    for name, shape in {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,), **others}.items():
        add_tensor(name, shape)
    for layer in range(layers):
        for name, shape in of_layer.items():
            add_tensor(f"blk.{layer}.{name}", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
