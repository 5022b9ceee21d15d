"""A model and a context of llama.cpp: memory that is C's, and how a step is told to it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards.edges import layer_words
from shards.errors import StageError
from shards.llamacpp.binding import Binding
from shards.runtime import RuntimeFacts

SEQUENCES = 128
"""Sequences a stage holds at once, kept ones among them. llama.cpp allows 256; each number costs some time in a step
and, on a stage with a head, a row of logits."""

_MOST_ROWS = 512
"""Rows computed together."""
_LOGIT_BYTES = 64 * 2**20
"""A stage that is to give all its hidden states has room for the logits of as many rows, though it makes none; so rows
are taken in parts that need no more than this."""


class LlamaModel:
    """A GGUF in memory (mapped, as far as the file's types allow)."""

    def __init__(self, native: Binding, path: Path, facts: RuntimeFacts) -> None:
        self._native, lib = native, native.lib
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers = 0
        native.said.clear()
        self.pointer = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.pointer:
            raise StageError(f"llama.cpp cannot load the stage: {native.reason()}", where=str(path))
        self.layers = lib.llama_model_n_layer(self.pointer)
        self.slides = lib.llama_model_n_swa(self.pointer) > 0
        self.vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.pointer))
        found = [self.layers, lib.llama_model_n_embd(self.pointer)]
        expected = [facts.end_layer - facts.first_layer, facts.hidden_size]
        if facts.is_first or facts.is_tail:
            found.append(self.vocabulary)
            expected.append(facts.vocabulary)
        kinds = lib.llama_model_is_recurrent, lib.llama_model_is_hybrid, lib.llama_model_has_encoder
        wrong = None
        if found != expected:
            wrong = f"the file has layers, hidden size and tokens {found}, expected were {expected}"
        elif any(kind(self.pointer) for kind in kinds):
            wrong = "the model keeps more than keys and values of each token, which cannot be rolled back"
        if wrong:
            self.close()
            raise StageError(wrong, where=str(path), hint="Export the model again, or use the OpenVINO engine.")

    def close(self) -> None:
        """Free it."""
        if self.pointer:
            self._native.lib.llama_model_free(self.pointer)
            self.pointer = None


class LlamaContext:
    """A model at work: its KV cache, and the arrays that a step is told by."""

    def __init__(self, native: Binding, model: LlamaModel, facts: RuntimeFacts, kv_type: str, threads: int) -> None:
        self._native, lib = native, native.lib
        self._is_first, self._is_tail = facts.is_first, facts.is_tail
        self._width = facts.hidden_size
        self.width_out = facts.vocabulary if facts.is_tail else facts.hidden_size
        rows = _MOST_ROWS if facts.is_tail else max(1, min(_MOST_ROWS, _LOGIT_BYTES // (4 * model.vocabulary)))
        parameters = lib.llama_context_default_params()
        # With a sliding window, llama.cpp gives away what is out of a sequence's sight, which a rollback can bring back
        # into it; not, though, what belongs to two sequences. So each slot gets a shadow that has all it has.
        self._shadow = SEQUENCES if model.slides else 0
        slots = SEQUENCES + self._shadow
        parameters.n_ctx = max(facts.kv_tokens, slots)  # llama.cpp wants room for a token of each
        parameters.n_batch = parameters.n_ubatch = max(rows, slots)
        parameters.n_seq_max = slots
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.type_k = parameters.type_v = getattr(lib, f"GGML_TYPE_{kv_type.upper()}")
        if kv_type == "f32":  # flash attention would round keys and values to f16
            parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = parameters.swa_full = parameters.no_perf = True
        parameters.offload_kqv = parameters.op_offload = False
        self._places: dict[int, int] = {}
        """By the rows of a run, which of llama.cpp's questions in it is about the tensor that is wanted."""
        self._asked = self._place = 0
        """How many there have been in this run, and from which on they are looked at."""
        if not facts.is_tail:
            self._take = self._callback(f"l_out-{model.layers - 1}".encode())  # kept: C holds the pointer
            parameters.cb_eval = self._take
        native.said.clear()
        self._pointer = lib.llama_init_from_model(model.pointer, parameters)
        if not self._pointer:
            raise StageError(
                f"llama.cpp cannot run the stage: {native.reason()}",
                where=f"layers {layer_words(facts)}",
                hint="Ask for another KV cache precision or a smaller kv_tokens, or use the OpenVINO engine.",
            )
        self._memory = lib.llama_get_memory(self._pointer)
        self._rows = min(rows, lib.llama_n_batch(self._pointer))
        self._out = np.empty((0, self.width_out), np.float32)
        self._filled = 0
        self._make_batch(lib)

    def decode(
        self, x: NDArray[Any], positions: NDArray[np.int32], slots: NDArray[np.int32], wanted: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Run rows: gives hidden states [rows, width], or on the tail the logits of wanted rows; valid until the next.

        Raises:
            RuntimeError: llama.cpp failed; rows may be in the cache.
        """
        total = len(wanted) if self._is_tail else len(positions)
        if len(self._out) < total:
            self._out = np.empty((total, self.width_out), np.float32)
        self._filled = 0
        for start in range(0, len(positions), self._rows):
            end = min(start + self._rows, len(positions))
            count = end - start
            if self._is_first:
                self._tokens[:count] = x[start:end]
            else:
                self._hidden[:count] = x[start:end]
            self._positions[:count] = positions[start:end]
            self._slots[:count] = slots[start:end]
            outputs = count
            if self._is_tail:
                outputs = self._mark(wanted, start, end)
            self._batch.n_tokens = count
            self._run()
            if self._shadow:
                self._cast_shadows(positions[start:end], slots[start:end])
            if self._is_tail and outputs:
                logits = self._logits(outputs)
                if count == len(positions):
                    return logits  # llama.cpp's own, which no other run of this step overwrites
                self._out[self._filled : self._filled + outputs] = logits
                self._filled += outputs
        if self._filled != total:
            self._places.clear()
            raise RuntimeError(f"llama.cpp gave {self._filled} of {total} rows")
        return self._out[:total]

    def remove(self, slot: int, length: int) -> None:
        """Forget all but the first `length` tokens of a slot."""
        for number in {slot, slot + self._shadow}:
            self._native.lib.llama_memory_seq_rm(self._memory, number, length, -1)

    def share(self, source: int, target: int, begin: int, end: int) -> None:
        """Let the cells of tokens [begin, end) of one slot be another's, too."""
        for number in {target, target + self._shadow}:
            self._native.lib.llama_memory_seq_cp(self._memory, source, number, begin, end)

    def clear(self) -> None:
        """Forget everything.

        Cells are given out from the first one on again: llama.cpp goes on behind those it gave out last, and attends to
        every cell up to the last one that is taken.
        """
        self._native.lib.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free it."""
        if self._pointer:
            self._native.lib.llama_free(self._pointer)
            self._pointer = None

    def _make_batch(self, lib: Any) -> None:
        """Arrays that stay where they are, and llama.cpp's description of them."""
        rows = self._rows
        self._tokens, self._positions, self._slots = (np.zeros(rows, np.int32) for _ in range(3))
        self._hidden = np.zeros((0 if self._is_first else rows, self._width), np.float32)
        self._marks = np.ones(rows, np.int8)
        self._wanted: NDArray[np.int32] | None = None
        self._marked = (0, 0)
        self._outputs = 0
        """What `_marks` says: of a step's wanted rows those of a run, from one row to another, and their number."""
        self._logits_array = np.empty((0, self.width_out), np.float32)
        self._logits_place = (0, 0)
        self._ones = np.ones(rows, np.int32)
        # llama.cpp takes a list of sequences for each row: here they all have one entry
        self._lists = self._slots.ctypes.data + 4 * np.arange(rows, dtype=np.uintp)
        self._batch = batch = lib.llama_batch()
        fields = dict(batch._fields_)
        if self._is_first:
            batch.token = self._tokens.ctypes.data_as(fields["token"])
        else:
            batch.embd = self._hidden.ctypes.data_as(fields["embd"])
        batch.pos = self._positions.ctypes.data_as(fields["pos"])
        batch.n_seq_id = self._ones.ctypes.data_as(fields["n_seq_id"])
        batch.seq_id = self._lists.ctypes.data_as(fields["seq_id"])
        batch.logits = self._marks.ctypes.data_as(fields["logits"])

    def _mark(self, wanted: NDArray[np.int32], start: int, end: int) -> int:
        """Say which rows of a run need logits; gives how many. Those of steps with the same rows are said once."""
        if wanted is self._wanted and (start, end) == self._marked:
            return self._outputs
        self._wanted, self._marked = wanted, (start, end)
        marked = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, end)] - start
        self._marks[: end - start] = 0
        self._marks[marked] = 1
        self._outputs = len(marked)
        return self._outputs

    def _logits(self, outputs: int) -> NDArray[np.float32]:
        """Of the last run, where llama.cpp has them: the same array for as long as they stay there."""
        pointer = self._native.lib.llama_get_logits(self._pointer)
        place = ctypes.addressof(pointer.contents), outputs
        if place != self._logits_place:
            self._logits_array = np.ctypeslib.as_array(pointer, (outputs, self.width_out))
            self._logits_place = place
        return self._logits_array

    def _cast_shadows(self, positions: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Let what a run has put into slots be their shadows', too."""
        for slot in np.unique(slots).tolist():
            own = positions[slots == slot]
            begin, end = int(own[0]), int(own[-1]) + 1
            self._native.lib.llama_memory_seq_cp(self._memory, slot, slot + self._shadow, begin, end)

    def _run(self) -> None:
        """Run the batch; hidden states that come out follow what is in `_out` already."""
        native, lib = self._native, self._native.lib
        native.said.clear()
        self._asked, self._place = 0, self._places.get(self._batch.n_tokens, 0)
        code = lib.llama_decode(self._pointer, self._batch)
        if code:
            raise RuntimeError(f"llama.cpp returned {code} ({native.reason()})")

    def _callback(self, wanted: bytes) -> Any:
        """What llama.cpp calls for each tensor of a step: is it wanted? And with the one that is, once it is computed.

        The answer to the second call is whether to go on. The first comes hundreds of times a step, so names are only
        looked at until it is known which of these calls is the one: steps of as many rows have the same graph.
        """
        take, name, places = self._take_rows, self._native.tensor_name, self._places

        def ask_or_take(tensor: int, is_asked: bool, _: Any) -> bool:
            if not is_asked:
                return take(tensor)
            self._asked = asked = self._asked + 1
            if asked < self._place or name(tensor) != wanted:
                return False
            places[self._batch.n_tokens] = asked
            return True

        return self._native.lib.ggml_backend_sched_eval_callback(ask_or_take)

    def _take_rows(self, tensor: int) -> bool:
        native = self._native
        size = native.tensor_bytes(tensor)
        count, rest = divmod(size, 4 * self._width)
        if rest == 0 and self._filled + count <= len(self._out):
            native.copy_tensor(tensor, self._out[self._filled :].ctypes.data, 0, size)
            self._filled += count
        return False
