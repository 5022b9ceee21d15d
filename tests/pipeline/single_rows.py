"""Sampling one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.messages import Open, Sampling, Token
from pipeline.sampler import Sampler
from shards.runtime import SequenceRows

Logits = NDArray[np.float32]


def decode(sampler: Sampler, sequence: int, position: int, row: Logits) -> Token:
    """One decode row: the token at `position`."""
    (token,) = sampler.sample([SequenceRows(sequence, position - 1, 1, 1)], row[None])
    return token


def draw(sampling: Sampling, row: Logits, position: int = 5, history: Sequence[int] = (), prompt: int = 0) -> Token:
    sampler = Sampler(len(row))
    sampler.open(Open(1, sampling, tuple(history), prompt))
    return decode(sampler, 1, position, row)
