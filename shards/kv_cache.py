"""What a KV cache is kept in, and what that costs."""

from __future__ import annotations

from math import ceil

from shards.errors import ConfigurationError
from shards.manifest import ModelFacts
from shards.runtime import EngineName, KvPrecision, Mode

_BLOCK = 32
"""Tokens of the CPU plugin's KV blocks."""

_SCALE_BYTES = 8
"""An f32 scale and an f32 zero point."""

_Q8_0_BYTES = 34 / 32
"""Of a number in llama.cpp's 8 bits: 32 share an f16 scale."""

_STATEFUL = 1.4
"""The stateful engine's caches grow ahead of what they hold. Of this the CPU had so much in use, and less with u8."""


def kv_precision(mode: Mode, wanted: KvPrecision | None) -> KvPrecision:
    """What keys and values are kept in: what is wanted, otherwise u8 in fast mode and f32 in exact mode.

    Raises:
        ConfigurationError: exact mode is to have another one than f32.
    """
    if mode == "exact" and wanted not in (None, "f32"):
        raise ConfigurationError(
            f"exact mode keeps its KV cache in f32, not in {wanted}",
            where="kv_precision",
            hint="Use mode fast, or leave the precision out.",
        )
    return wanted or ("f32" if mode == "exact" else "u8")


def kv_token_bytes(facts: ModelFacts, precision: KvPrecision, engine: EngineName = "openvino-paged") -> int:
    """Bytes of KV cache that a token takes in one layer, as the CPU lays it out; no device takes more.

    In u8, keys have a scale and a zero point for each channel of a block, values for each token; in llama.cpp both have
    a scale for 32 numbers.
    """
    if engine == "llamacpp":
        width = {"u8": _Q8_0_BYTES, "f16": 2, "f32": 4}[precision]
        return ceil(2 * facts.kv_heads * facts.head_size * width)
    key = value = facts.head_size * {"u8": 1, "f16": 2, "f32": 4}[precision]
    if precision == "u8":
        key += -(-facts.head_size * _SCALE_BYTES // _BLOCK)
        value += _SCALE_BYTES
    size = facts.kv_heads * (key + value)
    return size if engine == "openvino-paged" else round(_STATEFUL * size)
