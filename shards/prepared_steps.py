"""Steps of engines that can do a part of one before its rows are there. Imports OpenVINO."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from shards.device import reason
from shards.edges import layer_words
from shards.errors import StageError
from shards.inputs import check_counts, check_rows
from shards.runtime import Batch, RuntimeFacts, SequenceRows


class PreparedSteps(ABC):
    """`prepare` and `step` of a StageRuntime, whose engine has the three parts of them that are left open."""

    _facts: RuntimeFacts
    _prepared: tuple[SequenceRows, ...] | None = None
    """Sequences of the next step, if it is laid out."""

    added_rows = 0
    """See StageRuntime."""
    change_ms = 0.0
    """See StageRuntime."""

    @property
    def facts(self) -> RuntimeFacts:
        """What the stage is."""
        return self._facts

    def prepare(self, sequences: tuple[SequenceRows, ...]) -> None:
        """Lay out the next step; see StageRuntime."""
        check_counts(sequences)
        self._lay_out(sequences)
        self._prepared = sequences

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Run one ragged step; see StageRuntime."""
        is_prepared = batch.sequences is self._prepared
        try:
            check_rows(batch, self._facts)
            if not is_prepared:
                self.prepare(batch.sequences)
                is_prepared = True
            return self._run(batch)
        except StageError:
            if is_prepared:
                self._roll_back(batch)
            raise
        except RuntimeError as error:
            self._roll_back(batch)
            raise StageError(
                f"{self._facts.device} failed in a step of {len(batch.x)} rows: {reason(error)}",
                where=f"layers {layer_words(self._facts)}",
            ) from error
        finally:
            self._prepared = None

    @abstractmethod
    def _lay_out(self, sequences: tuple[SequenceRows, ...]) -> None:
        """Make room for the rows of a step, and have ready what can be without them."""

    @abstractmethod
    def _run(self, batch: Batch) -> NDArray[np.float32]:
        """Run the step that is laid out; raises RuntimeError where the device fails."""

    @abstractmethod
    def _roll_back(self, batch: Batch) -> None:
        """Take the rows of a batch back."""
