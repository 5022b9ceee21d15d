"""Timing decode steps of a loaded stage, as they are in a large model: with cold caches."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from shards.runtime import Batch, SequenceRows, StageRuntime

CONTEXT = 32
"""Tokens each sequence has before it is timed."""

_CACHE_BYTES = 64 * 2**20


class StepTimer:
    """Runs decode steps of `rows` sequences on a stage and knows the fastest."""

    def __init__(self, stage: StageRuntime, rows: int) -> None:
        facts, noise = stage.facts, np.random.default_rng(0)
        self._stage, self._rows, self._past = stage, rows, CONTEXT
        self._sample = int(facts.is_tail)

        def made(count: int) -> NDArray[np.int64] | NDArray[np.float32]:
            if facts.is_first:
                return noise.integers(0, facts.vocabulary, count)
            return noise.standard_normal((count, facts.hidden_size), np.float32)

        for sequence in range(rows):
            stage.step(Batch((SequenceRows(sequence, 0, CONTEXT),), made(CONTEXT)))
        self._x = made(rows)
        self.fastest = float("inf")
        """Milliseconds."""

    def run(self) -> None:
        """Run one step, timed."""
        batch = Batch(tuple(SequenceRows(s, self._past, 1, self._sample) for s in range(self._rows)), self._x)
        _empty_caches()
        start = perf_counter()
        self._stage.step(batch)
        self.fastest = min(self.fastest, 1e3 * (perf_counter() - start))
        self._past += 1

    def close(self) -> None:
        """Free the sequences."""
        for sequence in range(self._rows):
            self._stage.free(sequence)


def kv_tokens(rows: int, rounds: int) -> int:
    """What the KV cache of a stage must hold to time `rows` sequences that often; blocks have up to 256 tokens."""
    return rows * (-(-(CONTEXT + rounds) // 256) * 256)


def _empty_caches() -> None:
    """Take the processor's caches away from a stage of a few layers, as the other layers of a real one would."""
    np.zeros(_CACHE_BYTES, np.uint8).fill(1)
