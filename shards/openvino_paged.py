"""The paged engine: one infer request serves ragged batches of any number of sequences. Imports OpenVINO.

The KV cache is a set of blocks that OpenVINO's PagedAttention reads and writes through block lists (the scheme of
vLLM: Kwon et al., 2023, arXiv:2309.06180), so a rollback is a smaller `past_lens` and a fork is a shared list.
"""

from __future__ import annotations

from array import array
from time import perf_counter

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shards.blocks import BlockTable
from shards.device import Properties, cache_tensor, check_memory, compile_stage, facts_of
from shards.graph import block_tokens, cache_ports, find_layers, is_tail, make_paged, output_hidden_rows
from shards.inputs import InputBuffer
from shards.manifest import ModelFacts
from shards.prepared_steps import PreparedSteps
from shards.row_shapes import RowShapes
from shards.runtime import Batch, SequenceRows, StageConfig
from shards.step_rows import StepRows

_ADDED = -1
"""The sequence of rows that fill a step up."""
_TRIED_ROWS = (1, 1, 8, 8, 1, 8)


class PagedStage(PreparedSteps):
    """A StageRuntime over PagedAttention. `stage` is a cut graph; it is transformed in place.

    Raises:
        StageError: the device cannot compile the stage.
        GraphError: the graph does not take paged attention.
        CapacityError: there is no memory for the KV cache.
    """

    def __init__(
        self, core: ov.Core, stage: ov.Model, config: StageConfig, model: ModelFacts, properties: Properties
    ) -> None:
        # what the last layer gives, found while the graph still has the form that it is found by
        captured = find_layers(stage).edges[-1] if config.capture and is_tail(stage) else None
        make_paged(stage)
        if captured is not None:
            output_hidden_rows(stage, captured, axis=0)
        compiled = compile_stage(core, stage, config.device, properties)
        caches = cache_ports(compiled)
        block = block_tokens(caches)
        blocks = -(-config.kv_tokens // block)
        # in exact mode what is computed depends on what is asked for alone, and not on how long anything took
        self._shapes = RowShapes() if config.mode == "fast" and config.device == "CPU" else None
        self._added_block, spare = blocks, int(self._shapes is not None)
        """Keys and values of added rows go there."""
        self._facts = facts_of(config, model, compiled, block, blocks, caches[0].element_type)
        check_memory(config.device, (blocks + spare) * sum(port.block_bytes for port in caches), self._facts.kv_tokens)
        self._table = BlockTable(blocks, block)
        self._request = compiled.create_infer_request()
        # kept: the request does not keep a tensor's memory alive
        self._caches = {
            port.name: cache_tensor(core, config.device, port.element_type, (blocks + spare, *port.block_shape))
            for port in caches
        }
        for name, tensor in self._caches.items():
            self._request.set_tensor(name, tensor)
        self._inputs = {
            name: InputBuffer(self._request, port)
            for port in compiled.inputs
            if (name := next(iter(port.names))) not in self._caches
        }
        self._rows_in = "input_ids" if self._facts.is_first else "inputs_embeds"
        width = model.logits if self._facts.is_tail else self._facts.hidden_size
        self._nothing = np.empty((0, width), np.float32)
        self._captures = captured is not None
        self.hidden_rows = np.empty((0, self._facts.hidden_size), np.float32)
        """On a tail that captures: hidden states of the last step's wanted rows, valid until the next step."""
        self._rows = StepRows()
        self._total = 0
        """Rows of the step, with those added."""
        if self._shapes is not None:
            self._try_shapes()

    def fork(self, source: int, target: int, length: int) -> None:
        """Open `target` with the first `length` tokens of `source`; they share the blocks."""
        self._table.fork(source, target, length)

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        self._table.free(sequence)

    def close(self) -> None:
        """Release the device: request, compiled stage and KV cache go."""
        self._inputs.clear()
        del self._request
        self._caches.clear()

    def _lay_out(self, sequences: tuple[SequenceRows, ...]) -> None:
        self._table.extend(sequences)
        if active := tuple(rows for rows in sequences if rows.count):
            self._write(active)

    def _roll_back(self, batch: Batch) -> None:
        for rows in batch.sequences:
            self._table.rollback(rows.sequence, rows.past)

    def _try_shapes(self) -> None:
        """Learn what steps take, and what it costs that they change."""
        for number, rows in enumerate(_TRIED_ROWS):
            count = min(rows, self._table.block)
            batch = (SequenceRows(number, 0, count, int(self._facts.is_tail)),)
            hidden = np.zeros((count, self._facts.hidden_size), np.float32)
            self.step(Batch(batch, np.zeros(count, np.int64) if self._facts.is_first else hidden))
            self.free(number)

    def _write(self, active: tuple[SequenceRows, ...]) -> None:
        inputs, table = self._inputs, self._table
        rows = sum(each.count for each in active)
        self._total = rows if self._shapes is None else self._shapes.fitting(rows)
        self.added_rows = added = self._total - rows
        if added:
            active = (*active, SequenceRows(_ADDED, 0, added))
        if not self._rows.fits(active):
            fresh = StepRows(active)
            self._write_shape(fresh)
            self._rows = fresh
        past = [each.past for each in active]
        positions = self._rows.positions(past)
        blocks, block_begins = array("i"), array("i", [0])
        for each in active:
            if each.sequence == _ADDED:
                blocks.append(self._added_block)
            else:
                blocks.extend(table.blocks(each.sequence))
            block_begins.append(len(blocks))
        inputs["position_ids"].write(positions, positions.shape)
        inputs["past_lens"].write(past, (len(past),))
        inputs["block_indices"].write(blocks, (len(blocks),))
        inputs["block_indices_begins"].write(block_begins, (len(block_begins),))
        inputs["max_context_len"].write(max(each.past + each.count for each in active), ())

    def _write_shape(self, rows: StepRows) -> None:
        """What is the same in all steps that have as many rows of as many sequences."""
        begins, wanted = rows.begins, rows.wanted
        self._inputs["subsequence_begins"].write(begins, begins.shape)
        if self._facts.is_tail:
            # a head with no row to work on is outside what plugins are tested with: one row is cheap, and dropped
            self._inputs["output_rows"].write(wanted if len(wanted) else 0, (max(len(wanted), 1),))

    def _run(self, batch: Batch) -> NDArray[np.float32]:
        rows = len(batch.x)
        if not rows:
            self.hidden_rows = self.hidden_rows[:0]
            return self._nothing
        self._inputs[self._rows_in].write_first(batch.x, self._total)
        began = perf_counter()
        out = self._compute()
        if self._shapes is not None:
            self.change_ms = self._shapes.note(self._total, 1e3 * (perf_counter() - began))
        if self._facts.is_tail:
            wanted = len(self._rows.wanted)
            self.hidden_rows = self.hidden_rows[:wanted]
            return out[:wanted]
        return out[:rows]

    def _compute(self) -> NDArray[np.float32]:
        self._request.infer(share_outputs=True)  # by default it copies them all into its answer
        if self._captures:
            hidden = self._request.get_output_tensor(1).data
            self.hidden_rows = hidden.reshape(-1, hidden.shape[-1])
        data: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return data.reshape(-1, data.shape[-1])
