from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shards.blocks import BlockTable
from shards.errors import CapacityError, StageError
from shards.runtime import SequenceRows

CAPACITY, BLOCK = 12, 4
SEQUENCES = st.integers(0, 5)


class Memory(RuleBasedStateMachine):
    """A table beside the memory it stands for: what a sequence wrote, it must read, whatever the others do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockTable(CAPACITY, BLOCK)
        self.memory = [[0] * BLOCK for _ in range(CAPACITY)]
        self.tokens: dict[int, list[int]] = {}
        self.written = 0

    @rule(batch=st.lists(st.tuples(SEQUENCES, st.integers(0, 20), st.integers(0, 9)), max_size=3))
    def extend(self, batch: list[tuple[int, int, int]]) -> None:
        rows = [SequenceRows(s, min(past, len(self.tokens.get(s, []))), n) for s, past, n in batch]
        before = self.snapshot()
        try:
            needed = self.table.needed(rows)
        except StageError:
            with pytest.raises(StageError):
                self.table.extend(rows)
            assert self.snapshot() == before
            return
        if needed > self.table.free_blocks:
            with pytest.raises(CapacityError):
                self.table.extend(rows)
            assert self.snapshot() == before
            return
        free = self.table.free_blocks
        self.table.extend(rows)
        assert self.table.free_blocks == free - needed
        for row in rows:
            kept = self.tokens.get(row.sequence, [])[: row.past]
            self.tokens[row.sequence] = kept
            for position in range(row.past, row.past + row.count):
                self.written += 1
                kept.append(self.written)
                self.memory[self.table.blocks(row.sequence)[position // BLOCK]][position % BLOCK] = self.written

    @rule(source=SEQUENCES, copy=SEQUENCES, length=st.integers(0, 16))
    def fork(self, source: int, copy: int, length: int) -> None:
        before = self.snapshot()
        possible = (
            source in self.tokens
            and copy not in self.tokens
            and length <= len(self.tokens[source])
            and length % BLOCK == 0
        )
        if possible:
            free = self.table.free_blocks
            self.table.fork(source, copy, length)
            assert self.table.free_blocks == free
            self.tokens[copy] = self.tokens[source][:length]
        else:
            with pytest.raises(StageError):
                self.table.fork(source, copy, length)
            assert self.snapshot() == before

    @rule(sequence=SEQUENCES)
    def free(self, sequence: int) -> None:
        self.table.free(sequence)
        self.tokens.pop(sequence, None)

    @rule(sequence=SEQUENCES, length=st.integers(0, 4))
    def rollback(self, sequence: int, length: int) -> None:
        self.table.rollback(sequence, length * BLOCK)
        if sequence in self.tokens:
            del self.tokens[sequence][length * BLOCK :]

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for sequence, tokens in self.tokens.items():
            assert sequence in self.table
            assert self.table.length(sequence) == len(tokens)
            blocks = self.table.blocks(sequence)
            assert len(blocks) == -(-len(tokens) // BLOCK)
            assert [self.memory[blocks[i // BLOCK]][i % BLOCK] for i in range(len(tokens))] == tokens

    @invariant()
    def no_block_is_lost(self) -> None:
        held = {block for sequence in self.tokens for block in self.table.blocks(sequence)}
        assert len(held) + self.table.free_blocks == CAPACITY

    def snapshot(self) -> tuple[object, ...]:
        held = {s: (self.table.length(s), list(self.table.blocks(s))) for s in range(6) if s in self.table}
        return held, self.table.free_blocks


TestMemory = Memory.TestCase


def test_a_batch_that_does_not_fit_changes_nothing() -> None:
    table = BlockTable(2, 4)
    table.extend([SequenceRows(1, 0, 4)])
    with pytest.raises(CapacityError, match=r"needs 2 more blocks of 4 tokens, 1 of 2 are free"):
        table.extend([SequenceRows(1, 4, 1), SequenceRows(2, 0, 1)])
    assert (table.length(1), 2 in table, table.free_blocks) == (4, False, 1)


def test_what_a_rollback_gives_back_serves_the_same_batch() -> None:
    table = BlockTable(2, 4)
    table.extend([SequenceRows(1, 0, 8)])
    batch = [SequenceRows(1, 2, 2), SequenceRows(2, 0, 4)]
    assert table.needed(batch) == 0
    table.extend(batch)
    assert (table.length(1), table.length(2), table.free_blocks) == (4, 4, 0)


def test_a_block_that_two_give_up_at_once_is_counted_once() -> None:
    table = BlockTable(2, 4)
    table.extend([SequenceRows(1, 0, 4)])
    table.fork(1, 2, 4)
    batch = [SequenceRows(1, 0, 4), SequenceRows(2, 0, 4)]
    assert table.needed(batch) == 1
    table.extend(batch)
    assert table.blocks(1) != table.blocks(2)


def test_nobody_writes_into_a_shared_block() -> None:
    table = BlockTable(4, 4)
    table.extend([SequenceRows(1, 0, 6)])
    table.fork(1, 2, 4)
    with pytest.raises(StageError, match=r"position 3 is inside a KV block that a fork shares\. Go back to 0"):
        table.extend([SequenceRows(2, 3, 1)])
    table.free(1)
    table.extend([SequenceRows(2, 3, 1)])
    assert table.length(2) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([SequenceRows(9, 3, 1)], "sequence 9: the sequence is unknown, but 3 tokens of it should be cached"),
        ([SequenceRows(1, 6, 1)], "sequence 1: 6 tokens should be cached, 5 are"),
        ([SequenceRows(1, 5, 1), SequenceRows(1, 6, 1)], "sequence 1: the sequence is twice in the batch"),
    ],
)
def test_impossible_rows_are_named(rows: list[SequenceRows], message: str) -> None:
    table = BlockTable(4, 4)
    table.extend([SequenceRows(1, 0, 5)])
    with pytest.raises(StageError, match=message):
        table.extend(rows)


@pytest.mark.parametrize(
    ("fork", "message"),
    [
        ((9, 2, 4), "the source sequence is unknown"),
        ((1, 1, 4), "the target sequence is open already"),
        ((1, 2, 8), "8 tokens were asked for, 5 are cached"),
        ((1, 2, 3), "a length of 3 is not a multiple of the block of 4"),
    ],
)
def test_impossible_forks_are_named(fork: tuple[int, int, int], message: str) -> None:
    table = BlockTable(4, 4)
    table.extend([SequenceRows(1, 0, 5)])
    with pytest.raises(StageError, match=message):
        table.fork(*fork)
