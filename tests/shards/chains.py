"""Chains of stages in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards.edges import layers_between
from shards.loading import load_stage
from shards.runtime import Batch, SequenceRows, StageConfig, StageRuntime

CLOSE = 1e-4


class Chain:
    """Stages one after another."""

    def __init__(self, stages: Sequence[StageRuntime]) -> None:
        self.stages = stages

    def step(self, rows: Sequence[SequenceRows], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits of the wanted rows."""
        x: NDArray[Any] = np.array(tokens, np.int64)
        for stage in self.stages:
            x = stage.step(Batch(tuple(rows), x))
        return x.copy()

    def rows(self, sequence: int, past: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits of all rows of one sequence."""
        return self.step([SequenceRows(sequence, past, len(tokens), len(tokens))], tokens)

    def fork(self, source: int, target: int, length: int) -> None:
        for stage in self.stages:
            stage.fork(source, target, length)

    def free(self, *sequences: int) -> None:
        for stage in self.stages:
            for sequence in sequences:
                stage.free(sequence)

    def generate(self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int) -> dict[int, list[int]]:
        """The likeliest next tokens of several sequences at once, their prompts in chunks."""
        out: dict[int, list[int]] = {sequence: [] for sequence in prompts}
        past = dict.fromkeys(prompts, 0)
        while active := [s for s in prompts if len(out[s]) < count]:
            rows, tokens = [], []
            for s in active:
                new = [*prompts[s], *out[s]][past[s] : past[s] + chunk]
                ends = past[s] + len(new) == len(prompts[s]) + len(out[s])
                rows.append(SequenceRows(s, past[s], len(new), int(ends)))
                tokens += new
                past[s] += len(new)
            logits = iter(self.step(rows, tokens))
            for row in rows:
                if row.sample:
                    out[row.sequence].append(int(next(logits).argmax()))
        return out


@contextmanager
def chain(package: Path, edges: Sequence[float], **settings: Any) -> Iterator[Chain]:
    """Load the stages between `edges`, exact on the CPU unless `settings` of StageConfig say otherwise."""
    settings = {"mode": "exact", "kv_tokens": 2048} | settings
    stages = [
        load_stage(StageConfig(package=package, **layers_between(begin, end), **settings))
        for begin, end in pairwise(edges)
    ]
    try:
        yield Chain(stages)
    finally:
        for stage in stages:
            stage.close()
