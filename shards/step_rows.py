"""Where the rows of a step are: the same in all steps that have as many rows of as many sequences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shards.runtime import SequenceRows, wanted_rows


class StepRows:
    """The rows of steps of one shape. Kept from step to step: numpy is slow where its code is out of the cache.

    Args:
        sequences: Of one such step.
    """

    def __init__(self, sequences: Sequence[SequenceRows] = ()) -> None:
        self._shape = _shape(sequences)
        self._counts = np.array([rows.count for rows in sequences], np.int32)
        self.begins: NDArray[np.int32] = np.zeros(len(sequences) + 1, np.int32)
        """First row of each sequence, and the number of rows."""
        np.cumsum(self._counts, out=self.begins[1:])
        self._places = np.arange(self.begins[-1], dtype=np.int32) - np.repeat(self.begins[:-1], self._counts)
        self._is_single = len(self._places) == len(self._counts) and bool(self._counts.all())
        """Whether each sequence has one row."""
        self.wanted: NDArray[np.int32] = wanted_rows(sequences)
        """Rows that need logits."""

    def fits(self, sequences: Sequence[SequenceRows]) -> bool:
        """Whether a step of these has the shape: rows, and wanted rows, of each sequence."""
        return _shape(sequences) == self._shape

    def of_each(self, values: Sequence[int]) -> NDArray[np.int32]:
        """For each row the value of its sequence."""
        array = np.array(values, np.int32)
        return array if self._is_single else np.repeat(array, self._counts)

    def positions(self, past: Sequence[int]) -> NDArray[np.int32]:
        """For each row its position in its sequence, which has `past` tokens before its rows."""
        return self.of_each(past) if self._is_single else self.of_each(past) + self._places


def _shape(sequences: Sequence[SequenceRows]) -> list[tuple[int, int]]:
    return [(rows.count, rows.sample) for rows in sequences]
