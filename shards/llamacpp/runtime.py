"""The llama.cpp engine: ragged batches over one context. llama.cpp knows no stages, so each is a model of its own.

Hidden states go in as embeddings, and come out by a callback that llama.cpp asks at each tensor of a step: it takes
the last layer's output and ends the step there, so the norm and the head of a stage that is not the tail never run.
A rollback removes cells of the KV cache, a fork lets cells belong to one more sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from shards.blocks import BlockTable
from shards.device import check_memory
from shards.edges import layer_words
from shards.errors import CapacityError, StageError
from shards.kv_cache import kv_precision, kv_token_bytes
from shards.llamacpp.binding import binding
from shards.llamacpp.context import SEQUENCES, LlamaContext, LlamaModel
from shards.manifest import ModelFacts
from shards.prepared_steps import PreparedSteps
from shards.runtime import Batch, KvPrecision, RuntimeFacts, SequenceRows, StageConfig
from shards.step_rows import StepRows

BLOCK = 32
"""Tokens of a KV block. llama.cpp's cells are tokens; blocks are what the other engines share by, too."""

_KV_TYPES: dict[KvPrecision, str] = {"u8": "q8_0", "f16": "f16", "f32": "f32"}
_KV_GROUP = 32
"""Numbers that share a scale in q8_0."""


class LlamaCppRuntime(PreparedSteps):
    """A StageRuntime over llama.cpp.

    Args:
        path: A GGUF that holds the stage's layers, numbered from 0.
        config: Which layers of the model they are, and how to run them.
        model: What the model is.
        on_close: Called when the file is no longer in use.

    Raises:
        StageError: llama.cpp is not there, or cannot load or run the file.
        CapacityError: there is no memory for the KV cache.
    """

    def __init__(
        self, path: Path, config: StageConfig, model: ModelFacts, on_close: Callable[[], None] = lambda: None
    ) -> None:
        native = binding()
        self._on_close = on_close
        kept = _kv_type(config, model)
        blocks = -(-config.kv_tokens // BLOCK)
        threads = config.threads or len(config.cores or ()) or psutil.cpu_count(logical=False) or 1
        self._facts = facts = RuntimeFacts.of(
            config,
            model,
            block=BLOCK,
            blocks=blocks,
            sequences=SEQUENCES,
            properties={
                "KV_CACHE_PRECISION": _KV_TYPES[kept],
                "INFERENCE_NUM_THREADS": str(threads),
                "LLAMA_CPP_PYTHON": native.version,
            },
        )
        layers = config.end_layer - config.first_layer
        kv_bytes = layers * facts.kv_tokens * kv_token_bytes(model, kept, "llamacpp")
        check_memory("CPU", kv_bytes, facts.kv_tokens)
        self._table = BlockTable(blocks, BLOCK)
        self._model = LlamaModel(native, path, facts)
        try:
            self._context = LlamaContext(native, self._model, facts, _KV_TYPES[kept], threads)
        except BaseException:
            self._model.close()
            raise
        self._slots: dict[int, int] = {}
        self._free = list(range(SEQUENCES))[::-1]
        self._rows = StepRows()
        none = np.empty(0, np.int32)
        self._layout = none, none, none
        """Of the rows of the next step their positions and slots, and which of them are wanted."""

    def _lay_out(self, sequences: tuple[SequenceRows, ...]) -> None:
        table = self._table
        lengths = [table.length(rows.sequence) for rows in sequences]
        if opened := sum(rows.sequence not in self._slots for rows in sequences):
            table.needed(sequences)  # what is wrong with a sequence is said before what is full
            self._check_slots(opened)
        table.extend(sequences)
        for rows, length in zip(sequences, lengths, strict=True):
            if rows.sequence not in self._slots:
                self._slots[rows.sequence] = self._free.pop()
            elif rows.past < length:
                self._forget(rows.sequence, rows.past)
        if not self._rows.fits(sequences):
            self._rows = StepRows(sequences)
        positions = self._rows.positions([rows.past for rows in sequences])
        slots = self._rows.of_each([self._slots[rows.sequence] for rows in sequences])
        self._layout = positions, slots, self._rows.wanted

    def _run(self, batch: Batch) -> NDArray[np.float32]:
        if not len(batch.x):
            return np.empty((0, self._context.width_out), np.float32)
        return self._context.decode(batch.x, *self._layout)

    def fork(self, source: int, target: int, length: int) -> None:
        """Open `target` with the first `length` tokens of `source`; they share the cells."""
        self._check_slots(1)
        self._table.fork(source, target, length)
        slot = self._slots[target] = self._free.pop()
        self._context.share(self._slots[source], slot, 0, length)

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        if sequence in self._slots:
            self._table.free(sequence)
            slot = self._slots.pop(sequence)
            self._free.append(slot)
            if self._slots:
                self._context.remove(slot, 0)
            else:
                self._context.clear()

    def close(self) -> None:
        """Release the context with its KV cache, and the model."""
        self._context.close()
        self._model.close()
        self._on_close()

    def _roll_back(self, batch: Batch) -> None:
        for rows in batch.sequences:
            self._table.rollback(rows.sequence, rows.past)
            self._forget(rows.sequence, rows.past)

    def _forget(self, sequence: int, length: int) -> None:
        self._context.remove(self._slots[sequence], length)

    def _check_slots(self, wanted: int) -> None:
        if wanted > len(self._free):
            raise CapacityError(
                f"{wanted} more sequences were asked for, {len(self._free)} of {len(self._slots) + len(self._free)} are"
                " free",
                where=f"layers {layer_words(self._facts)}",
                hint="Free a sequence, or run fewer at once.",
            )


def _kv_type(config: StageConfig, model: ModelFacts) -> KvPrecision:
    """What keys and values are kept in; raises a StageError where llama.cpp cannot do what is asked for."""
    precision = kv_precision(config.mode, config.kv_precision)
    if precision == "u8" and model.head_size % _KV_GROUP:
        if config.kv_precision is None:
            return "f16"
        raise StageError(
            f"llama.cpp keeps keys and values in 8 bits only in groups of {_KV_GROUP}; a head has {model.head_size}",
            where="kv_precision",
            hint="Ask for f16.",
        )
    return precision
