"""A decoder written by hand, in the shape exporters give, with the oddities that make a graph impossible to cut."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import openvino as ov
from openvino import opset13 as op

Oddity = Literal[
    "shared cache",
    "per-layer input",
    "extra input",
    "stateless",
    "no attention op",
    "other state",
    "one state",
    "two outputs",
    "no tokens",
    "half precision",
    "two heads",
    "soft cap",
    "flat rows measured",
    "side by side",
    "nothing behind attention",
]

HIDDEN, HEADS, HEAD_SIZE, VOCABULARY = 16, 2, 8, 32


class Decoder:
    """Builds the graph; `build()` may be called once."""

    def __init__(self, layers: int = 3, oddity: Oddity | None = None) -> None:
        self._layers, self._oddity = layers, oddity
        self._random = np.random.default_rng(0)
        self._inputs: list[ov.Node] = []
        self._sinks: list[ov.Node] = []
        self._flat: list[ov.Node] = []  # hidden states with one axis for all rows

    def build(self) -> ov.Model:
        dtype = ov.Type.f16 if self._oddity == "half precision" else ov.Type.f32
        self._type: np.dtype[Any] = np.dtype(np.float16 if dtype == ov.Type.f16 else np.float32)
        tokens = self._input("ids" if self._oddity == "no tokens" else "input_ids", [-1, -1], ov.Type.i64)
        mask = self._input("attention_mask", [-1, -1], ov.Type.i64)
        self._beam = self._input("beam_idx", [-1], ov.Type.i32)
        self._batch = op.gather(op.shape_of(tokens, "i64"), _ints(0), _ints(0))
        self._mask = op.unsqueeze(op.convert(mask, "boolean"), _ints(1, 2))
        hidden = op.gather(self._weight(VOCABULARY, HIDDEN), tokens, op.constant(0, ov.Type.i64))
        aside = op.gather(self._weight(VOCABULARY, HIDDEN), tokens, op.constant(0, ov.Type.i64))
        cache = None
        for k in range(self._layers):
            if self._oddity == "per-layer input":
                hidden = op.add(hidden, aside)
            if self._oddity == "extra input":
                hidden = op.add(hidden, self._input(f"image_{k}", [-1, -1, HIDDEN], ov.Type.f32))
            if cache is None or self._oddity != "shared cache":
                key = self._cache(f"{k}.key", hidden, dtype)
                cache = (key, key if self._oddity == "one state" else self._cache(f"{k}.value", hidden, dtype))
            hidden = self._layer(hidden, cache)
            if self._oddity == "other state":
                hidden = op.add(hidden, self._running_sum(f"{k}.sum", hidden))
        results = [self._result("logits", self._head(hidden))]
        if self._oddity == "two outputs":
            results.append(self._result("scores", self._head(hidden)))
        return ov.Model(results, self._sinks, self._inputs, "tiny")

    def _layer(self, hidden: ov.Node, cache: tuple[ov.Node, ov.Node]) -> ov.Node:
        attended = op.add(hidden, self._attention(hidden, *cache))
        if self._oddity == "nothing behind attention":
            return op.relu(attended)
        if self._oddity == "side by side":
            return op.add(attended, self._feed_forward(hidden))
        return self._feed_forward(attended)

    def _attention(self, hidden: ov.Node, key: ov.Node, value: ov.Node) -> ov.Node:
        query = self._heads(hidden)
        if self._oddity == "no attention op":
            weights = op.softmax(op.matmul(query, key, False, True), -1)
            mixed = op.matmul(weights, value, False, False)
        else:
            mixed = op.scaled_dot_product_attention(query, key, value, self._mask)
        joined = op.reshape(op.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, -1), True)
        return op.matmul(joined, self._weight(HIDDEN, HIDDEN), False, False)

    def _feed_forward(self, hidden: ov.Node) -> ov.Node:
        if self._oddity == "flat rows measured":  # as experts do; later layers borrow the first one's measurement
            flat = op.reshape(hidden, _ints(-1, HIDDEN), False)
            self._flat.append(flat)
            flat = op.reshape(flat, op.shape_of(self._flat[0], "i32"), False)
            wide = op.matmul(flat, self._weight(HIDDEN, HIDDEN), False, False)
            return op.add(hidden, op.reshape(wide, op.shape_of(hidden, "i64"), False))
        return op.add(hidden, op.matmul(op.relu(hidden), self._weight(HIDDEN, HIDDEN), False, False))

    def _cache(self, name: str, hidden: ov.Node, dtype: ov.Type) -> ov.Node:
        new = self._heads(hidden)
        if self._oddity == "stateless":
            past = self._input(f"past_key_values.{name}", [-1, HEADS, -1, HEAD_SIZE], dtype)
            return op.concat([past, new], 2)
        empty = op.concat([self._batch, _ints(HEADS), _ints(0), _ints(HEAD_SIZE)], 0)
        shape = ov.PartialShape([-1, HEADS, -1, HEAD_SIZE])
        past = op.read_value(op.broadcast(self._constant(0.0), empty), name, dtype, shape)
        cache = op.concat([op.gather(past, self._beam, op.constant(0, ov.Type.i64)), new], 2)
        self._sinks.append(op.assign(cache, name))
        return cache

    def _running_sum(self, name: str, hidden: ov.Node) -> ov.Node:
        shape = ov.PartialShape([-1, -1, HIDDEN])
        before = op.read_value(op.multiply(hidden, self._constant(0.0)), name, hidden.get_element_type(), shape)
        total = op.add(before, hidden)
        self._sinks.append(op.assign(total, name))
        return total

    def _head(self, hidden: ov.Node) -> ov.Node:
        def logits(width: int) -> ov.Node:
            return op.matmul(hidden, self._weight(HIDDEN, width), False, False)

        if self._oddity == "two heads":
            return op.concat([logits(VOCABULARY // 2), logits(VOCABULARY // 2)], -1)
        if self._oddity == "soft cap":
            capped = op.tanh(op.divide(op.convert(logits(VOCABULARY), "f32"), self._constant(5.0)))
            return op.multiply(self._constant(5.0), capped)
        return logits(VOCABULARY)

    def _heads(self, hidden: ov.Node) -> ov.Node:
        rows = op.matmul(hidden, self._weight(HIDDEN, HEADS * HEAD_SIZE), False, False)
        return op.transpose(op.reshape(rows, _ints(0, 0, HEADS, HEAD_SIZE), True), _ints(0, 2, 1, 3))

    def _weight(self, rows: int, columns: int) -> ov.Node:
        return op.constant(self._random.normal(0, 0.2, (rows, columns)).astype(self._type))

    def _constant(self, value: float) -> ov.Node:
        return op.constant(np.array(value, self._type))

    def _input(self, name: str, shape: list[int], dtype: ov.Type) -> ov.Node:
        node = op.parameter(ov.PartialShape(shape), dtype, name=name)
        node.output(0).set_names({name})
        self._inputs.append(node)
        return node

    def _result(self, name: str, value: ov.Node) -> ov.Node:
        value.output(0).set_names({name})
        return op.result(value, name=name)


def _ints(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64))
