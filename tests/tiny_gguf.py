"""Tiny GGUF models with a tokenizer of their own, written in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 64, 2, 4, 2, 128, 512
HEAD_SIZE = HIDDEN // HEADS
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "1 2", "12 3", "4 5", "' l", "'l l", "' L", "'L L", "Ċ Ċ", "Ġ Ġ", "e r", "i n", "Ġ a")


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    for number, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + number)
    return [table[byte] for byte in range(256)]


def vocabulary() -> list[str]:
    """Special tokens, bytes, merges."""
    return [*SPECIAL, *byte_symbols(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_gguf(
    path: Path,
    *,
    pre: str = "smollm",
    stored: str = "Q8_0",
    seed: int = 0,
    layers: int = LAYERS,
    rope_factors: float | None = None,
    architecture: str = "llama",
    vocabulary_size: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A llama. `metadata` adds entries; None as a value leaves one out.

    The weights depend on `seed` alone, up to what `stored` (a type of gguf) rounds, and on the number of tokens; unused
    ones fill up to `vocabulary_size`. In F32 they are numbers that F16 holds as well.
    """
    rng = np.random.default_rng(seed)
    dtype = gguf.GGMLQuantizationType[stored]
    tokens = vocabulary()
    tokens += [f"<unused{number}>" for number in range(len(tokens), vocabulary_size or 0)]
    entries: dict[str, Any] = {
        "general.name": "tiny",
        "general.file_type": 7,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": CONTEXT,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FFN,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": HEAD_SIZE,
        f"{architecture}.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in entries.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)

    def add(name: str, rows: int, columns: int, spread: float) -> None:
        weights = _halves(rng.normal(0, spread, (rows, columns)))
        writer.add_tensor(name, gguf.quantize(weights, dtype), raw_dtype=dtype)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, _halves(rng.uniform(0.5, 1.5, HIDDEN)))

    add("token_embd.weight", len(tokens), HIDDEN, 0.5)
    add_norm("output_norm.weight")
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.full(HEAD_SIZE // 2, rope_factors, np.float32))
    kv = KV_HEADS * HEAD_SIZE
    for layer in range(layers):
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", kv, HIDDEN),
            ("attn_v", kv, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ):
            add(f"blk.{layer}.{name}.weight", rows, columns, 2 / columns**0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _halves(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return weights.astype(np.float16).astype(np.float32)
