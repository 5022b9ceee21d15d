"""Which KV blocks hold which sequence: pure accounting, no tensors.

A stage allocates through it, and the scheduler keeps one of its own, fed with the same batches, to know what fits.
Forks share whole blocks by reference count, after PagedAttention (Kwon et al., 2023, arXiv:2309.06180), but a
block that is being filled always belongs to one sequence, so nothing is ever copied.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shards.errors import CapacityError, StageError
from shards.runtime import SequenceRows


@dataclass(slots=True)
class _Cached:
    length: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))


class BlockTable:
    """Blocks of `block` tokens, dealt to sequences. A method either does all it says, or raises and changes nothing."""

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity, self.block = capacity, block
        self._free = array("i", range(capacity - 1, -1, -1))
        self._references = [0] * capacity
        self._sequences: dict[int, _Cached] = {}

    @property
    def free_blocks(self) -> int:
        """How many blocks no sequence holds."""
        return len(self._free)

    def __len__(self) -> int:
        """How many sequences are open."""
        return len(self._sequences)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def length(self, sequence: int) -> int:
        """How many tokens of a sequence are cached; 0 for an unknown one."""
        cached = self._sequences.get(sequence)
        return cached.length if cached else 0

    def blocks(self, sequence: int) -> array[int]:
        """The blocks of a sequence, in the order of its tokens. Only for reading, until the next change."""
        return self._sequences[sequence].blocks

    def holders(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._references[block]

    def needed(self, batch: Iterable[SequenceRows]) -> int:
        """Blocks the batch takes beyond those its rollbacks give back (which may make it negative).

        `extend` finds room if these are at most `free_blocks`.

        Raises:
            StageError: as `extend`.
        """
        taken, dropped, seen = 0, Counter[int](), set[int]()
        for rows in batch:
            if rows.sequence in seen:
                raise StageError("the sequence is twice in the batch", where=f"sequence {rows.sequence}")
            seen.add(rows.sequence)
            kept = self._kept(rows)
            taken += self._blocks_for(rows.past + rows.count) - kept
            if cached := self._sequences.get(rows.sequence):
                dropped.update(cached.blocks[kept:])
        return taken - sum(self._references[block] == count for block, count in dropped.items())

    def extend(self, batch: Sequence[SequenceRows]) -> None:
        """Make room for the rows of a batch: roll each sequence back to its `past`, then add `count` tokens.

        Raises:
            StageError: a sequence is twice in the batch, or unknown with a `past`; `past` is beyond what is cached,
                or inside a block that a fork shares (going back there means writing into the other's tokens).
            CapacityError: too few blocks are free.
        """
        if self._extend_in_place(batch):
            return
        needed = self.needed(batch)
        if needed > len(self._free):
            raise CapacityError(
                f"the KV cache is full: the batch needs {needed} more blocks of {self.block} tokens, "
                f"{len(self._free)} of {self.capacity} are free",
                hint="Free a sequence, or give the stage a larger kv_tokens.",
            )
        for rows in batch:
            self._truncate(self._sequences.setdefault(rows.sequence, _Cached()), rows.past)
        for rows in batch:
            cached = self._sequences[rows.sequence]
            cached.length += rows.count
            if missing := self._blocks_for(cached.length) - len(cached.blocks):
                fresh = self._free[-missing:]
                del self._free[-missing:]
                for block in fresh:
                    self._references[block] = 1
                cached.blocks.extend(fresh)

    def rollback(self, sequence: int, length: int) -> None:
        """Forget the tokens of a sequence from `length` on; does nothing where fewer are cached."""
        if cached := self._sequences.get(sequence):
            self._truncate(cached, min(length, cached.length))

    def fork(self, source: int, target: int, length: int) -> None:
        """Open `target` with the first `length` tokens of `source`; both share the blocks.

        Raises:
            StageError: `source` is unknown or shorter, `target` is open, or `length` is not a multiple of the block.
        """
        where = f"fork of sequence {source} to {target}"
        cached = self._sequences.get(source)
        if cached is None:
            raise StageError("the source sequence is unknown", where=where)
        if target in self._sequences:
            raise StageError("the target sequence is open already", where=where, hint="Free it first.")
        if not 0 <= length <= cached.length:
            raise StageError(f"{length} tokens were asked for, {cached.length} are cached", where=where)
        if length % self.block:
            raise StageError(f"a length of {length} is not a multiple of the block of {self.block}", where=where)
        shared = cached.blocks[: length // self.block]
        for block in shared:
            self._references[block] += 1
        self._sequences[target] = _Cached(length, shared)

    def free(self, sequence: int) -> None:
        """Forget a sequence; unknown ones are ignored."""
        if cached := self._sequences.pop(sequence, None):
            self._truncate(cached, 0)

    def _extend_in_place(self, batch: Sequence[SequenceRows]) -> bool:
        """Do what `extend` says where each sequence grows within blocks it has to itself: most steps of decoding."""
        grown: dict[int, tuple[_Cached, int]] = {}
        for rows in batch:
            cached, end = self._sequences.get(rows.sequence), rows.past + rows.count
            if (
                cached is None
                or rows.past != cached.length
                or rows.past % self.block == 0
                or end > len(cached.blocks) * self.block
                or self._references[cached.blocks[-1]] > 1
                or rows.sequence in grown
            ):
                return False
            grown[rows.sequence] = cached, end
        for cached, end in grown.values():
            cached.length = end
        return True

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block)

    def _kept(self, rows: SequenceRows) -> int:
        """How many of its blocks a sequence keeps when it goes back to `past`; raises if it cannot go there."""
        where = f"sequence {rows.sequence}"
        cached = self._sequences.get(rows.sequence)
        if cached is None:
            if rows.past:
                raise StageError(
                    f"the sequence is unknown, but {rows.past} tokens of it should be cached",
                    where=where,
                    hint="Send it from its first token.",
                )
            return 0
        if not 0 <= rows.past <= cached.length:
            raise StageError(
                f"{rows.past} tokens should be cached, {cached.length} are",
                where=where,
                hint=f"Send it from position {cached.length} or before.",
            )
        kept = self._blocks_for(rows.past)
        if rows.past % self.block and self._references[cached.blocks[kept - 1]] > 1:
            raise StageError(
                f"position {rows.past} is inside a KV block that a fork shares",
                where=where,
                hint=f"Go back to {rows.past - rows.past % self.block} and compute the rest again.",
            )
        return kept

    def _truncate(self, cached: _Cached, length: int) -> None:
        kept = self._blocks_for(length)
        for block in cached.blocks[kept:]:
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)
        del cached.blocks[kept:]
        cached.length = length
