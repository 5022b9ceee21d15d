"""Inputs of an infer request that keep their memory from step to step. Imports OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
from numpy.typing import NDArray

from shards.errors import StageError
from shards.runtime import Batch, RuntimeFacts, SequenceRows


class InputBuffer:
    """One input: a tensor bound to a request once, then resized and written in place.

    Making and binding a tensor costs ten times what writing one does, and a step has eight inputs.
    """

    def __init__(self, request: ov.InferRequest, port: ov.Output) -> None:
        empty = [0 if dim.is_dynamic else dim.get_length() for dim in port.partial_shape]
        self._tensor = ov.Tensor(port.element_type, ov.Shape(empty))
        self._data = self._tensor.data
        request.set_tensor(port, self._tensor)

    def write(self, values: Any, shape: tuple[int, ...]) -> None:
        """Take `values` (anything numpy reads), as a tensor of `shape`."""
        if shape != self._data.shape:
            self._tensor.shape = list(shape)
            self._data = self._tensor.data
        self._data[...] = values

    def write_first(self, values: NDArray[Any], rows: int) -> None:
        """Take `values` as the first of so many rows; the others are zeros."""
        shape = (rows, *values.shape[1:])
        if len(values) == rows:
            self.write(values, shape)
            return
        if shape != self._data.shape:
            self.write(0, shape)
        self._data[: len(values)] = values
        self._data[len(values) :] = 0


def check_rows(batch: Batch, facts: RuntimeFacts) -> None:
    """Raise a StageError unless the rows of a batch are what its sequences and the stage call for."""
    expected = sum(rows.count for rows in batch.sequences)
    shape = (expected,) if facts.is_first else (expected, facts.hidden_size)
    if batch.x.shape != shape:
        raise StageError(f"the batch has rows of shape {list(batch.x.shape)}, its sequences call for {list(shape)}")
    if not (facts.is_first and expected):
        return
    tokens = batch.x.tolist()  # quicker looked at than the array, for as few as there are in most steps
    if not 0 <= min(tokens) <= max(tokens) < facts.vocabulary:
        raise StageError(f"a token id is outside the vocabulary of {facts.vocabulary}")


def check_counts(sequences: Sequence[SequenceRows]) -> None:
    """Raise a StageError if more rows of a sequence are wanted than it has."""
    for rows in sequences:
        if not 0 <= rows.sample <= rows.count:
            raise StageError(f"{rows.sample} of {rows.count} rows were asked for", where=f"sequence {rows.sequence}")
