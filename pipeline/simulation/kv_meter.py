"""Keeps a policy to the KV cache there is."""

from __future__ import annotations

from pipeline.messages import Fork, Free, Step
from shards.blocks import BlockTable


class KvMeter:
    """The KV cache of a modelled stage, in the order of the wire, as a real stage would account for it.

    Args:
        tokens: What it holds; rounded down to whole blocks.
        block: Tokens of a block.
    """

    def __init__(self, tokens: int, block: int) -> None:
        self._table = BlockTable(tokens // block, block)
        self.peak = 0
        """Most tokens that were taken at once, in whole blocks."""

    @property
    def tokens(self) -> int:
        """What it holds."""
        return self._table.capacity * self._table.block

    def take(self, step: Step) -> None:
        """Apply a step.

        Raises:
            StageError, CapacityError: a real stage would refuse it.
        """
        table = self._table
        for operation in step.operations:
            match operation:
                case Fork(source, target, length):
                    table.fork(source, target, length)
                case Free(sequence):
                    table.free(sequence)
        table.extend(step.rows)
        self.peak = max(self.peak, (table.capacity - table.free_blocks) * table.block)
