"""Hidden states that go to the head with the tokens sampled from them, while somebody records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.messages import Token
from shards.errors import ConfigurationError
from shards.runtime import SequenceRows, StageRuntime


@runtime_checkable
class _Captures(Protocol):
    @property
    def hidden_rows(self) -> NDArray[np.float32]: ...


class TailCapture:
    """Of one tail. `on` may be set by any thread; the rest is the engine's thread's."""

    def __init__(self) -> None:
        self.on = False
        self._stage: _Captures | None = None

    def attach(self, stage: StageRuntime) -> None:
        """Take hidden states from this stage, which was loaded to capture.

        Raises:
            ConfigurationError: its engine gives none.
        """
        if not isinstance(stage, _Captures):
            raise ConfigurationError(
                f"the engine {stage.facts.engine} does not give hidden states",
                where="--capture",
                hint="Serve with the engine openvino-paged, or without --capture.",
            )
        self._stage = stage

    def given_to(self, tokens: Sequence[Token], rows: Sequence[SequenceRows]) -> tuple[Token, ...]:
        """The tokens of the stage's last step, with the hidden states while that is on."""
        if self._stage is None or not self.on:
            return tuple(tokens)
        hidden, begin = self._stage.hidden_rows, 0
        first: dict[int, int] = {}  # what to add to a token's position to have its row
        for r in rows:
            first[r.sequence] = begin - (r.past + r.count - r.sample) - 1
            begin += r.sample
        return tuple(replace(t, hidden=hidden[first[t.sequence] + t.position].copy()) for t in tokens)
