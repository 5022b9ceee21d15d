"""Timing decode steps of loaded stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from shards.runtime import Batch, SequenceRows, StageRuntime

_CONTEXT = 32
"""Tokens each sequence has before it is timed, or what the stage's blocks make of it."""

_LARGEST_BLOCK = 256

_MOST_REPEATS = 8
_REPEAT_SECONDS = 1.0
_STILL = 0.02
"""Moving by less is none."""

_CACHE_BYTES = 64 * 2**20
"""More than a processor's last cache."""


def step_times(stages: Sequence[StageRuntime], rows: int, rounds: int) -> list[float]:
    """What a decode step of `rows` sequences takes on each stage, in milliseconds.

    The stages take turns, so that other load on the machine hits all alike, for `rounds` rounds, and again as long as
    the figures still move and there is time. Each step begins with cold processor caches, as a few layers would find
    them within a large model. The lower quartile is taken: other load lengthens some steps, and on a PC that is held
    back (saving power, or by a quota) a few are short.
    """
    began = perf_counter()
    timers = [_StepTimer(stage, rows) for stage in stages]
    scratch = np.zeros(_CACHE_BYTES, np.uint8)
    found = [math.inf] * len(timers)
    for _ in range(_MOST_REPEATS):
        before = found
        for _ in range(rounds):
            for timer in timers:
                scratch.fill(1)
                timer.run()
        found = [timer.usual for timer in timers]
        if perf_counter() - began > _REPEAT_SECONDS or all(map(_is_still, before, found)):
            break
    for timer in timers:
        timer.close()
    return found


def kv_tokens(rows: int, rounds: int) -> int:
    """What the KV cache of a stage must hold for that: a block of context for each row, and blocks for what follows."""
    return rows * (1 + -(-_MOST_REPEATS * rounds // _LARGEST_BLOCK)) * _LARGEST_BLOCK


def _is_still(before: float, after: float) -> bool:
    return abs(after - before) <= _STILL * after


class _StepTimer:
    def __init__(self, stage: StageRuntime, rows: int) -> None:
        facts, self._noise = stage.facts, np.random.default_rng(0)
        context = -(-_CONTEXT // facts.block) * facts.block  # whole blocks, so that it can be shared
        self._stage, self._rows, self._past = stage, rows, context
        self._sample = int(facts.is_tail)
        stage.step(Batch((SequenceRows(0, 0, context),), self._made(context)))
        for sequence in range(1, rows):
            stage.fork(0, sequence, context)
        self._x = self._made(rows)
        self._times: list[float] = []

    @property
    def usual(self) -> float:
        """The lower quartile of the steps so far."""
        return sorted(self._times)[len(self._times) // 4]

    def run(self) -> None:
        batch = Batch(tuple(SequenceRows(s, self._past, 1, self._sample) for s in range(self._rows)), self._x)
        start = perf_counter()
        self._stage.step(batch)
        self._times.append(1e3 * (perf_counter() - start))
        self._past += 1

    def close(self) -> None:
        for sequence in range(self._rows):
            self._stage.free(sequence)

    def _made(self, count: int) -> NDArray[np.int64] | NDArray[np.float32]:
        facts = self._stage.facts
        if facts.is_first:
            return self._noise.integers(0, facts.vocabulary, count)
        return self._noise.standard_normal((count, facts.hidden_size), np.float32)
