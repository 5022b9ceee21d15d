"""The paged engine: one infer request serves ragged batches of any number of sequences. Imports OpenVINO.

The KV cache is a set of blocks that OpenVINO's PagedAttention reads and writes through block lists (the scheme of
vLLM: Kwon et al., 2023, arXiv:2309.06180), so a rollback is a smaller `past_lens` and a fork is a shared list.
"""

from __future__ import annotations

from array import array

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shards.blocks import BlockTable
from shards.device import Properties, cache_tensor, check_memory, compile_stage, facts_of, reason
from shards.edges import layer_words
from shards.errors import StageError
from shards.graph import block_tokens, cache_ports, find_layers, is_tail, make_paged, output_hidden_rows
from shards.inputs import InputBuffer, check_rows
from shards.manifest import ModelFacts
from shards.runtime import Batch, RuntimeFacts, StageConfig


class PagedStage:
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
        self._facts = facts_of(config, model, compiled, block, blocks, caches[0].element_type)
        check_memory(config.device, blocks * sum(port.block_bytes for port in caches), self._facts.kv_tokens)
        self._table = BlockTable(blocks, block)
        self._request = compiled.create_infer_request()
        # kept: the request does not keep a tensor's memory alive
        self._caches = {
            port.name: cache_tensor(core, config.device, port.element_type, (blocks, *port.block_shape))
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

    @property
    def facts(self) -> RuntimeFacts:
        """What the stage is."""
        return self._facts

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Run one ragged step; see StageRuntime."""
        check_rows(batch, self._facts)
        self._table.extend(batch.sequences)
        try:
            return self._infer(batch)
        except RuntimeError as error:
            for rows in batch.sequences:
                self._table.rollback(rows.sequence, rows.past)
            raise StageError(
                f"{self._facts.device} failed in a step of {len(batch.x)} rows: {reason(error)}",
                where=f"layers {layer_words(self._facts)}",
            ) from error

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

    def _infer(self, batch: Batch) -> NDArray[np.float32]:
        active = [rows for rows in batch.sequences if rows.count]
        if not active:
            self.hidden_rows = self.hidden_rows[:0]
            return self._nothing
        past = np.array([rows.past for rows in active], np.int32)
        count = np.array([rows.count for rows in active], np.int32)
        begins = np.zeros(len(active) + 1, np.int32)
        np.cumsum(count, out=begins[1:])
        total = int(begins[-1])
        blocks, block_begins = array("i"), array("i", [0])
        for rows in active:
            blocks.extend(self._table.blocks(rows.sequence))
            block_begins.append(len(blocks))
        positions = np.arange(total, dtype=np.int32) + np.repeat(past - begins[:-1], count)

        inputs = self._inputs
        inputs[self._rows_in].write(batch.x, batch.x.shape)
        inputs["position_ids"].write(positions, (total,))
        inputs["past_lens"].write(past, past.shape)
        inputs["subsequence_begins"].write(begins, begins.shape)
        inputs["block_indices"].write(blocks, (len(blocks),))
        inputs["block_indices_begins"].write(block_begins, (len(block_begins),))
        inputs["max_context_len"].write(int((past + count).max()), ())
        if self._facts.is_tail:
            wanted = batch.wanted
            # a head with no row to work on is outside what plugins are tested with: one row is cheap, and dropped
            inputs["output_rows"].write(wanted if len(wanted) else 0, (max(len(wanted), 1),))
            logits = self._compute()
            self.hidden_rows = self.hidden_rows[: len(wanted)]
            return logits[: len(wanted)]
        return self._compute()

    def _compute(self) -> NDArray[np.float32]:
        # shared: by default the request copies its outputs into the answer
        outputs = self._request.infer(share_outputs=True)
        if self._captures:
            self.hidden_rows = outputs[1].reshape(-1, outputs[1].shape[-1])
        data: NDArray[np.float32] = outputs[0]
        return data.reshape(-1, data.shape[-1])
