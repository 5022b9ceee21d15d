"""The stateful engine: one infer request for each sequence, all from one compiled stage. Imports OpenVINO.

A rollback leaves the forgotten rows in the KV cache and hides them with zeros in the attention mask, while positions go
on from where they should be; once over a fifth of a cache is hidden, it is written again without them. A stage whose
attention also counts rows in the cache (a sliding window, ALiBi), or that takes no mask and positions, is written again
at each rollback instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shards.blocks import BlockTable
from shards.device import Properties, compile_stage, facts_of, reason
from shards.edges import layer_words
from shards.errors import GraphError, StageError
from shards.graph import find_layers, gather_output_rows, is_tail, make_paged, output_hidden_rows
from shards.inputs import InputBuffer, check_counts, check_rows
from shards.manifest import ModelFacts
from shards.runtime import Batch, RuntimeFacts, SequenceRows, StageConfig

BLOCK = 32
"""Tokens in a block. A fork copies its prefix on the host, so a shorter one is not worth it."""

HIDDEN_SHARE = 0.2
"""A cache with a larger share of hidden rows is written again without them."""

_FIRST_MASK = 1024


class StatefulStage:
    """A StageRuntime over OpenVINO's KV states. `stage` is a cut graph; it is changed in place.

    The sequences of a batch run one after another, in this thread: sibling requests of a compiled stage are never
    used at the same time, which some GPU drivers do not survive. `kv_tokens` limits the tokens of all sequences as
    the block table counts them; hidden rows (up to a quarter more) and the copies that forks make come on top.

    Raises:
        StageError: the device cannot compile the stage.
    """

    added_rows = 0
    """See StageRuntime."""
    change_ms = 0.0
    """See StageRuntime."""

    def __init__(
        self, core: ov.Core, stage: ov.Model, config: StageConfig, model: ModelFacts, properties: Properties
    ) -> None:
        layers = find_layers(stage)
        caches = [state for pair in layers.caches for state in pair]
        self._length_axis = {state.get_attributes()["variable_id"]: _length_axis(state) for state in caches}
        names = {name for port in stage.inputs for name in port.names}
        self._hides = {"attention_mask", "position_ids"} <= names and not _counts_cached_rows(stage)
        gather_output_rows(stage)
        self._captures = config.capture and is_tail(stage)
        if self._captures:
            output_hidden_rows(stage, layers.edges[-1], axis=1)
        self._compiled = compile_stage(core, stage, config.device, properties)
        blocks = -(-config.kv_tokens // BLOCK)
        self._facts = facts_of(config, model, self._compiled, BLOCK, blocks)
        self._table = BlockTable(blocks, BLOCK)
        self._sequences: dict[int, _Sequence] = {}
        self._idle: list[_Sequence] = []
        self._rows_in = "input_ids" if self._facts.is_first else "inputs_embeds"
        self._width = model.logits if self._facts.is_tail else self._facts.hidden_size
        self.hidden_rows = np.empty((0, self._facts.hidden_size), np.float32)
        """On a tail that captures: hidden states of the last step's wanted rows, valid until the next step."""

    @property
    def facts(self) -> RuntimeFacts:
        """What the stage is."""
        return self._facts

    def prepare(self, sequences: tuple[SequenceRows, ...]) -> None:
        """Nothing can be done without the rows; see StageRuntime."""

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Run the sequences of a batch one after another; see StageRuntime."""
        check_rows(batch, self._facts)
        check_counts(batch.sequences)
        self._table.extend(batch.sequences)
        outputs, hidden = [], []
        begin = 0
        try:
            for rows in batch.sequences:
                sequence = self._sequences.get(rows.sequence)
                if sequence is None:
                    sequence = self._sequences[rows.sequence] = self._open()
                self._roll_back(sequence, rows.past)
                if rows.count:
                    outputs.append(self._infer(sequence, rows, batch.x[begin : begin + rows.count]))
                    if self._captures:
                        hidden.append(sequence.request.get_output_tensor(1).data[0, : rows.sample])
                begin += rows.count
        except RuntimeError as error:
            self._undo(batch, failed=rows.sequence)
            raise StageError(
                f"{self._facts.device} failed in {rows.count} rows of sequence {rows.sequence}: {reason(error)}",
                where=f"layers {layer_words(self._facts)}",
            ) from error
        self.hidden_rows = np.concatenate(hidden) if hidden else self.hidden_rows[:0]
        if len(outputs) == 1:
            return outputs[0]
        return np.concatenate(outputs) if outputs else np.empty((0, self._width), np.float32)

    def fork(self, source: int, target: int, length: int) -> None:
        """Open `target` with the first `length` tokens of `source`, copied through the host."""
        self._table.fork(source, target, length)
        origin, copy = self._sequences[source], self._open()
        self._rewrite(origin, copy, origin.visible[:length])
        self._sequences[target] = copy

    def free(self, sequence: int) -> None:
        """Forget a sequence; its request serves a later one."""
        self._table.free(sequence)
        if freed := self._sequences.pop(sequence, None):
            freed.request.reset_state()
            freed.clear()
            self._idle.append(freed)

    def close(self) -> None:
        """Release the device: requests with their states, and the compiled stage."""
        self._sequences.clear()
        self._idle.clear()
        del self._compiled

    def _open(self) -> _Sequence:
        if self._idle:
            return self._idle.pop()
        request = self._compiled.create_infer_request()
        inputs = {next(iter(port.names)): InputBuffer(request, port) for port in self._compiled.inputs}
        if "beam_idx" in inputs:
            inputs["beam_idx"].write(0, (1,))
        return _Sequence(request, inputs)

    def _infer(self, sequence: _Sequence, rows: SequenceRows, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Logits [sample, vocabulary] on the tail, else hidden states [count, hidden size]."""
        sequence.append(rows.count)
        inputs = sequence.inputs
        inputs[self._rows_in].write(x, (1, *x.shape))
        if "attention_mask" in inputs:
            inputs["attention_mask"].write(sequence.mask[: sequence.rows], (1, sequence.rows))
        if "position_ids" in inputs:
            inputs["position_ids"].write(np.arange(rows.past, rows.past + rows.count), (1, rows.count))
        if self._facts.is_tail:
            wanted = np.arange(rows.count - rows.sample, rows.count) if rows.sample else 0
            inputs["output_rows"].write(wanted, (max(rows.sample, 1),))
        data: NDArray[np.float32] = sequence.request.infer(share_outputs=True)[0][0]
        return data[: rows.sample] if self._facts.is_tail else data

    def _roll_back(self, sequence: _Sequence, past: int) -> None:
        """Hide what a sequence has beyond `past`, and drop hidden rows where there are too many."""
        hidden = sequence.hide_beyond(past)
        if hidden > HIDDEN_SHARE * sequence.rows or (hidden and not self._hides):
            self._rewrite(sequence, sequence, sequence.visible)

    def _rewrite(self, source: _Sequence, target: _Sequence, kept: NDArray[np.intp]) -> None:
        """Make the rows `kept` of `source` all that is in the caches of `target`."""
        if len(kept):
            states = {state.name: state for state in target.request.query_state()}
            for state in source.request.query_state():
                rows = np.take(state.state.data, kept, axis=self._length_axis[state.name])
                states[state.name].state = ov.Tensor(rows)
        else:
            target.request.reset_state()
        target.clear()
        target.append(len(kept))

    def _undo(self, batch: Batch, failed: int) -> None:
        """Take the rows of a failed batch back; what the failed request holds is unknown, so its sequence goes."""
        for rows in batch.sequences:
            self._table.rollback(rows.sequence, rows.past)
            if rows.sequence == failed:
                self._table.free(failed)
                del self._sequences[failed]
            elif sequence := self._sequences.get(rows.sequence):
                sequence.hide_beyond(rows.past)
            else:  # its turn had not come
                self._table.free(rows.sequence)


@dataclass(slots=True)
class _Sequence:
    """A request and what its caches hold: `rows` rows, of which those with a 1 in `mask` are the sequence's tokens."""

    request: ov.InferRequest
    inputs: dict[str, InputBuffer]
    rows: int = 0
    length: int = 0
    mask: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_FIRST_MASK, np.int64))

    @property
    def visible(self) -> NDArray[np.intp]:
        """Where in the caches the sequence's tokens are, in order."""
        return np.flatnonzero(self.mask[: self.rows])

    def append(self, count: int) -> None:
        """Count rows as the sequence's next tokens."""
        if self.rows + count > len(self.mask):
            self.mask = np.concatenate([self.mask, np.zeros(self.rows + count, np.int64)])
        self.mask[self.rows : self.rows + count] = 1
        self.rows += count
        self.length += count

    def hide_beyond(self, length: int) -> int:
        """Hide all but the first `length` tokens; returns how many rows are hidden in all."""
        if length < self.length:
            self.mask[self.visible[length:]] = 0
            self.length = length
        return self.rows - self.length

    def clear(self) -> None:
        """Nothing is in the caches."""
        self.mask[: self.rows] = 0
        self.rows = self.length = 0


def _length_axis(state: ov.Node) -> int:
    """The axis of a KV state that grows with the tokens: of its dynamic ones the second, the first being the batch."""
    shape = state.output(0).get_partial_shape()
    dynamic = [axis for axis in range(len(shape)) if shape[axis].is_dynamic]
    if len(dynamic) != 2:
        raise GraphError(
            f"the KV state has shape {shape}; its batch and its length should be dynamic, and nothing else",
            where=str(state.get_attributes()["variable_id"]),
            hint="Use the paged engine.",
        )
    return dynamic[1]


def _counts_cached_rows(stage: ov.Model) -> bool:
    """Whether attention looks at where rows are in the cache, beyond their order, so that hidden rows would show.

    OpenVINO's own PagedAttention transformation recognises sliding windows and ALiBi in the mask and makes them
    operands 10 and 11 of its operation; a graph that it does not take counts as one with a window.
    """
    paged = stage.clone()
    try:
        make_paged(paged)
    except GraphError:
        return True
    for node in paged.get_ordered_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            window, slopes = node.input_value(10).get_node(), node.input_value(11).get_partial_shape()
            if window.get_type_name() != "Constant" or window.get_data().any() or slopes != ov.PartialShape([0]):
                return True
    return False
