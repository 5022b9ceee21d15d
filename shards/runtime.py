"""The stage runtime: one interface, several engines. A batch is ragged: rows of many sequences, flattened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from shards.edges import begin_of, end_of

if TYPE_CHECKING:
    from shards.manifest import ModelFacts

EngineName = Literal["openvino-paged", "openvino-stateful", "llamacpp"]
EngineKind = Literal["openvino", "llamacpp"]
"""What is installed on a PC, and what a package has a backend for."""
Mode = Literal["exact", "fast"]
KvPrecision = Literal["u8", "f16", "f32"]


def kind_of(engine: EngineName) -> EngineKind:
    """The library that an engine is made of."""
    return "llamacpp" if engine == "llamacpp" else "openvino"


class StageConfig(BaseModel):
    """Everything a stage process needs to load its layers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    package: Path
    first_layer: int = Field(ge=0)
    end_layer: int = Field(gt=0, description="one past the last layer")
    begins_after_attention: bool = Field(False, description="the stage before does the first layer's attention")
    ends_after_attention: bool = Field(False, description="of the last layer only the attention is done here")
    engine: EngineName = "openvino-paged"
    device: str = "CPU"
    mode: Mode = "fast"
    threads: int | None = Field(None, gt=0, description="inference threads; None: the engine chooses")
    cores: tuple[int, ...] | None = Field(None, description="processor numbers the process is pinned to")
    kv_tokens: int = Field(8192, gt=0, description="tokens the KV cache of this stage holds, all sequences together")
    kv_precision: KvPrecision | None = Field(
        None, description="what keys and values are kept in; None: u8 in fast mode, f32 in exact mode"
    )
    tune: bool = Field(True, description="in fast mode, try the properties that matter at load and keep the best")
    background: bool = Field(False, description="whether the process leaves the processors to others that want them")
    capture: bool = Field(False, description="on the tail: also give the hidden states that logits are made of")


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows of one sequence in a step.

    `past` is the number of tokens of the sequence that stay in the KV cache; if more are cached, the rest is
    forgotten: that **is** the rollback. `count` rows follow, at positions past .. past + count - 1. The tail
    makes logits for the last `sample` of them (0 for a prefill chunk that is not the last).
    """

    sequence: int
    past: int
    count: int
    sample: int = 0


def wanted_rows(sequences: Sequence[SequenceRows]) -> NDArray[np.int32]:
    """Indices of the rows of a step that need logits."""
    picked: list[int] = []
    end = 0
    for rows in sequences:
        end += rows.count
        picked.extend(range(end - rows.sample, end))
    return np.array(picked, np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged step for one stage.

    `x` is int64 token ids of shape [rows] on the first stage, float32 hidden states [rows, hidden size] on
    the others; rows of the sequences follow one another in the order of `sequences`.
    """

    sequences: tuple[SequenceRows, ...]
    x: NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What a loaded stage says of itself."""

    engine: EngineName
    device: str
    first_layer: int
    end_layer: int
    depth: int
    hidden_size: int
    vocabulary: int
    block: int
    """Tokens in a KV block: forks happen at multiples of it."""
    kv_tokens: int
    """Tokens the KV cache holds (a multiple of `block`)."""
    properties: dict[str, str]
    """Device properties in force, after tuning."""
    begins_after_attention: bool = False
    """The stage before does the first layer's attention."""
    ends_after_attention: bool = False
    """Of the last layer only the attention is done here."""
    sequences: int | None = None
    """Most sequences it can hold at once, kept ones and forks among them; None: as many as there is room for."""

    @classmethod
    def of(
        cls,
        config: StageConfig,
        model: ModelFacts,
        *,
        block: int,
        blocks: int,
        properties: dict[str, str],
        sequences: int | None = None,
    ) -> Self:
        """Of a stage that is loaded as `config` says, with so many KV blocks of `block` tokens."""
        return cls(
            engine=config.engine,
            device=config.device,
            first_layer=config.first_layer,
            end_layer=config.end_layer,
            begins_after_attention=config.begins_after_attention,
            ends_after_attention=config.ends_after_attention,
            depth=model.layers,
            hidden_size=model.hidden_size,
            vocabulary=model.vocabulary,
            block=block,
            kv_tokens=block * blocks,
            sequences=sequences,
            properties=properties,
        )

    @property
    def is_first(self) -> bool:
        """Whether the stage embeds tokens."""
        return begin_of(self) == 0

    @property
    def is_tail(self) -> bool:
        """Whether the stage makes logits."""
        return end_of(self) == self.depth


class StageRuntime(Protocol):
    """A loaded stage. Used by one thread only."""

    @property
    def facts(self) -> RuntimeFacts:
        """What the stage is."""
        ...

    @property
    def added_rows(self) -> int:
        """Rows that the last step was filled up with, to have the shape of one before it."""
        ...

    @property
    def change_ms(self) -> float:
        """What the last step took longer for having another shape than the one before it, as far as that is known."""
        ...

    def prepare(self, sequences: tuple[SequenceRows, ...]) -> None:
        """Do, before the rows of the next step are there, what can be done for it without them; may be left out.

        If the next step has other sequences than this very tuple, it is as if this had not been called, but that
        they may lack what they had beyond the `past` of theirs here.

        Raises:
            StageError, CapacityError: as `step`.
        """
        ...

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Run one ragged step.

        A sequence is opened by its first rows, with `past` 0. Returns hidden states [rows, hidden size], or on
        the tail logits [wanted rows, vocabulary]. The array is valid until the next call.

        Raises:
            StageError: a sequence is unknown, `past` is beyond what is cached, or the device failed. Nothing of
                the batch is then in the cache of any sequence beyond its `past`.
            CapacityError: the KV cache is full.
        """
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Open `target` with the first `length` tokens of `source` (a multiple of the block), without copying."""
        ...

    def free(self, sequence: int) -> None:
        """Forget a sequence; unknown ones are ignored, so that freeing twice is harmless."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...
