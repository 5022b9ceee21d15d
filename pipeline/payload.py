"""Rows of a step as bytes: token ids, hidden states as f32, hidden states as row-scaled f16.

Residual streams reach 1e6 and more, where plain f16 overflows at 65504. Row-scaled f16 divides every row by a power
of two first, so that its largest value lies in [2^14, 2^15): a multiplication by a power of two is exact, all 11
significant bits of f16 are used, and values down to 2^-28 of the row's largest keep them.

All numbers are little-endian. Layout of `f16`: one int16 exponent a row, then the rows.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

PayloadKind = Literal["tokens", "f32", "f16"]

Rows = NDArray[np.int32] | NDArray[np.float32]
"""Token ids int32 [rows], or hidden states float32 [rows, hidden size]."""

_TOP = 15
"""The largest value of a scaled row has this binary exponent: it is below 2^15."""

_SMALLEST = -100
"""Rows below 2^-100 are scaled as if they reached it, so that 2^(15 - exponent) stays a normal f32."""


def size(kind: PayloadKind, rows: int, hidden_size: int) -> int:
    """Bytes of a payload of `rows` rows."""
    match kind:
        case "tokens":
            return rows * 4
        case "f32":
            return rows * hidden_size * 4
        case "f16":
            return rows * (2 + hidden_size * 2)


def shape(kind: PayloadKind, rows: int, hidden_size: int) -> tuple[int, ...]:
    """Shape of the array a payload of `rows` rows stands for."""
    return (rows,) if kind == "tokens" else (rows, hidden_size)


def encode(kind: PayloadKind, x: Rows) -> memoryview:
    """The bytes of `x`.

    For `tokens` and `f32` they are the array's own memory where it is contiguous: send or copy them before the array
    changes. `f16` keeps infinities and NaN as they are; they don't disturb the rest of their row. Values that
    round up beyond the largest f32 become infinite.
    """
    if kind == "f16":
        return _encode_f16(np.asarray(x, np.float32))
    packed = np.ascontiguousarray(x, "<i4" if kind == "tokens" else "<f4")
    return packed.reshape(-1).view(np.uint8).data


def decode(kind: PayloadKind, data: bytes | memoryview, rows: int, hidden_size: int) -> Rows:
    """The array of a payload whose length is `size(kind, rows, hidden_size)`.

    `tokens` and `f32` are read-only views of `data`, not copies.
    """
    match kind:
        case "tokens":
            return np.frombuffer(data, "<i4")
        case "f32":
            return np.frombuffer(data, "<f4").reshape(rows, hidden_size)
        case "f16":
            exponents = np.frombuffer(data, "<i2", rows).astype(np.int32)
            scaled = np.frombuffer(data, "<f2", offset=2 * rows).reshape(rows, hidden_size)
            with np.errstate(all="ignore"):  # subnormal results and NaN are as good as any
                return scaled.astype(np.float32) * _power(exponents - _TOP)[:, None]


def _encode_f16(x: NDArray[np.float32]) -> memoryview:
    rows, hidden_size = x.shape
    largest = np.abs(x).max(axis=1, initial=0)
    if not np.isfinite(largest).all():
        largest = np.abs(x).max(axis=1, initial=0, where=np.isfinite(x))
    exponents = np.maximum(np.frexp(largest)[1], _SMALLEST)
    data = np.empty(size("f16", rows, hidden_size), np.uint8)
    data[: 2 * rows].view("<i2")[:] = exponents
    scaled = data[2 * rows :].view("<f2").reshape(rows, hidden_size)
    with np.errstate(all="ignore"):
        scaled[:] = x * _power(_TOP - exponents)[:, None]
    return data.data


def _power(exponents: NDArray[np.int32]) -> NDArray[np.float32]:
    """2 to the exponents, exactly, in f32."""
    return np.ldexp(np.float32(1), exponents)
