"""Minimal chains of stages, stateful and paged, for comparing a split graph with the whole one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shards.graph import block_tokens, cache_ports, cut_stage, gather_output_rows, make_paged

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": "1",
}
SEQUENCES = 3
"""Sequences a paged chain has room for."""

BLOCKS_EACH = 4
"""KV blocks a sequence of a paged chain has."""

Split = tuple[tuple[float, float], ...]


def splits(depth: int) -> list[Split]:
    """Every split in two, and one in three."""
    return [((0, k), (k, depth)) for k in range(1, depth)] + [((0, 1), (1, depth - 1), (depth - 1, depth))]


def half_splits(depth: int) -> list[Split]:
    """Every split in two within a layer, and one in three whose middle stage has one layer's worth of two layers."""
    inner = [k + 0.5 for k in range(1, depth - 1)]
    return [((0, 1.5), (1.5, 2.5), (2.5, depth))] + [((0, k), (k, depth)) for k in inner]


class Graph:
    """An IR whose stages are compiled once each."""

    def __init__(self, xml: Path) -> None:
        self._core, self._xml = ov.Core(), xml
        self.stateful = cache(self._stateful)
        self.paged = cache(self._paged)

    def whole(self) -> ov.InferRequest:
        return self._core.compile_model(self._core.read_model(self._xml), "CPU", EXACT).create_infer_request()

    def _stateful(self, begin: float, end: float) -> ov.InferRequest:
        stage = cut_stage(self._core.read_model(self._xml), begin, end)
        gather_output_rows(stage)
        return self._core.compile_model(stage, "CPU", EXACT).create_infer_request()

    def _paged(self, begin: float, end: float) -> ov.InferRequest:
        stage = cut_stage(self._core.read_model(self._xml), begin, end)
        make_paged(stage)
        compiled = self._core.compile_model(stage, "CPU", EXACT)
        request = compiled.create_infer_request()
        for port in cache_ports(compiled):
            shape = ov.Shape([SEQUENCES * BLOCKS_EACH, *port.block_shape])
            request.set_tensor(port.name, ov.Tensor(port.element_type, shape))
        return request


def infer(request: ov.InferRequest, feed: dict[str, NDArray]) -> NDArray[np.float32]:
    """One call with those of the values that the graph has inputs for; the output, flattened to rows."""
    for port in request.model_inputs:
        for name in port.names & feed.keys():
            request.set_tensor(name, ov.Tensor(feed[name]))
    request.infer()
    out = request.get_output_tensor(0).data
    return out.reshape(-1, out.shape[-1]).copy()


def run_stateful(
    chain: Sequence[ov.InferRequest], ids: NDArray[np.int64], chunks: Sequence[int]
) -> NDArray[np.float32]:
    """Logits of every row, fed in chunks."""
    for request in chain:
        request.reset_state()
    logits, past = [], 0
    for count in chunks:
        x: NDArray = ids[None, past : past + count].copy()
        for request in chain:
            feed = {
                "input_ids": x,
                "inputs_embeds": x,
                "attention_mask": np.ones((1, past + count), np.int64),
                "position_ids": np.arange(past, past + count)[None],
                "beam_idx": np.zeros(1, np.int32),
                "output_rows": np.arange(count, dtype=np.int32),
            }
            x = infer(request, feed)[None]
        logits.append(x[0])
        past += count
    return np.concatenate(logits)


def run_paged(
    chain: Sequence[ov.InferRequest], sequences: Sequence[NDArray[np.int64]], steps: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Logits of every row of sequences that share ragged steps; steps[i][s] rows of sequence s in step i."""
    block = block_tokens(cache_ports(chain[0].get_compiled_model()))
    past = [0] * len(sequences)
    logits: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    for counts in steps:
        active = [s for s, count in enumerate(counts) if count]
        spans = [(past[s], past[s] + counts[s]) for s in active]
        x: NDArray = np.concatenate([sequences[s][a:b] for s, (a, b) in zip(active, spans, strict=True)])
        feed = dict(_ragged(active, spans, block), output_rows=np.arange(len(x), dtype=np.int32))
        for request in chain:
            x = infer(request, {"input_ids": x, "inputs_embeds": x, **feed})
        rows: Iterator[NDArray[np.float32]] = iter(np.split(x, np.cumsum([b - a for a, b in spans])[:-1]))
        for s in active:
            logits[s].append(next(rows))
            past[s] += counts[s]
    return [np.concatenate(rows) for rows in logits]


def _ragged(active: list[int], spans: list[tuple[int, int]], block: int) -> dict[str, NDArray]:
    used = [-(-end // block) for _, end in spans]
    blocks = [np.arange(s * BLOCKS_EACH, s * BLOCKS_EACH + n) for s, n in zip(active, used, strict=True)]
    return {
        "position_ids": np.concatenate([np.arange(a, b) for a, b in spans]),
        "past_lens": np.array([a for a, _ in spans], np.int32),
        "subsequence_begins": np.cumsum([0] + [b - a for a, b in spans]).astype(np.int32),
        "block_indices": np.concatenate(blocks).astype(np.int32),
        "block_indices_begins": np.cumsum([0, *used]).astype(np.int32),
        "max_context_len": np.array(max(b for _, b in spans), np.int32),
    }
