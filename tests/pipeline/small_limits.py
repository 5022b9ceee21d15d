"""What a small stage takes."""

from __future__ import annotations

from pipeline.wire import Limits

LIMITS = Limits(
    epoch=3,
    payload="f32",
    hidden_size=4,
    vocabulary=100,
    kv_tokens=64,
    max_rows=16,
    max_sequences=4,
    max_operations=8,
)
