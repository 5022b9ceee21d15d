"""The head's picture of the stages' KV cache: what fits, what can be shared, what must go."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from pipeline.messages import Fork, Free, Operation
from shards.blocks import BlockTable
from shards.runtime import SequenceRows


@dataclass(eq=False, slots=True)
class _Node:
    """One block of tokens after the blocks of its parents."""

    parent: _Node | None = None
    tokens: tuple[int, ...] = ()
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    holders: dict[int, None] = field(default_factory=dict)
    """Sequences that begin with this path, in order of coming."""


class PrefixIndex:
    """Finds a sequence that begins like a prompt: a tree with a block of tokens on each edge.

    Prefix sharing by whole blocks is vLLM's (Kwon et al., 2023), the tree SGLang's (Zheng et al., 2023,
    arXiv:2312.07104). Tokens are compared, not their hashes, so a collision can't leak another client's text.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._root = _Node()
        self._tips: dict[int, tuple[_Node, int]] = {}
        """Where each sequence ends: its deepest node and how many tokens lead there."""

    def longest(self, tokens: Sequence[int]) -> tuple[int | None, int]:
        """The (sequence, length) that shares the most whole blocks with `tokens`; (None, 0) if none does."""
        node, length = self._root, 0
        while child := node.children.get(tuple(tokens[length : length + self._block])):
            node, length = child, length + self._block
        return next(iter(node.holders), None), length

    def extend(self, sequence: int, tokens: Sequence[int], length: int) -> None:
        """Learn that the first `length` tokens of a sequence can be forked from now on."""
        node, known = self._tips.get(sequence, (self._root, 0))
        if length - known < self._block:
            return
        for start in range(known, length - self._block + 1, self._block):
            edge = tuple(tokens[start : start + self._block])
            if edge not in node.children:
                node.children[edge] = _Node(node, edge)
            node = node.children[edge]
            node.holders[sequence] = None
        self._tips[sequence] = node, length - length % self._block

    def length(self, sequence: int) -> int:
        """How many tokens of a sequence can be forked."""
        return self._tips.get(sequence, (self._root, 0))[1]

    def shorten(self, sequence: int, heir: int, length: int) -> bool:
        """Let `heir` take the place of a sequence, with the first `length` tokens of it (whole blocks).

        Returns:
            Whether there is an heir: none is needed where another sequence begins with these tokens.
        """
        tip, known = self._tips.get(sequence, (self._root, 0))
        left = list(_upwards(tip))[(known - length) // self._block :]
        is_needed = bool(left) and len(left[0].holders) == 1
        if is_needed:
            for node in left:
                node.holders[heir] = None
            self._tips[heir] = left[0], length
        self.remove(sequence)
        return is_needed

    def remove(self, sequence: int) -> None:
        """Forget a sequence; unknown ones are ignored."""
        tip, _ = self._tips.pop(sequence, (self._root, 0))
        for node in _upwards(tip):
            del node.holders[sequence]
            if not node.holders and node.parent is not None:
                del node.parent.children[node.tokens]

    def twins(self, sequence: int) -> Collection[int]:
        """The sequences that have all the whole blocks of this one, itself included; none if it has no block."""
        node, _ = self._tips.get(sequence, (self._root, 0))
        return node.holders


class PrefixCache:
    """Accounts for the KV blocks of running sequences, and keeps others to fork from while there is room.

    Kept are finished sequences, and those that had to stop for a while: they go on from a fork of what is still there.
    Room is made from the end of the least recently used, no more than is needed, so beginnings (which are what
    others share) stay longest, and what stopped has only to be computed again as far as it had to go.

    It tracks the stages in wire order: what it does is noted in `operations`, which stages apply in that order before
    the rows of the next step. So a block that is given away here is free on every stage when its new rows get there,
    and a source may be evicted right after it was forked. Blocks are taken whole, and a prompt takes all its blocks
    when it is opened, so the stages never hold more than is accounted for here.

    Args:
        capacity: Blocks of the smallest stage.
        block: Tokens of a block: the largest of the chain, a multiple of the others.
        enabled: Whether anything is kept and shared. If not, what stops is freed and has to be computed again: some
            engines fork by copying, and whoever switches sharing off is to have none.
        sequences: Most that the stages hold at once, more than ever run; None: any number.
    """

    def __init__(self, capacity: int, block: int, enabled: bool = True, sequences: int | None = None) -> None:
        self._block = block
        self._enabled = enabled
        self._most = sequences
        self._table = BlockTable(capacity, block)
        self._index = PrefixIndex(block)
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""
        self._pins = [0] * capacity
        """How many running sequences hold each block."""
        self._pinned = 0
        """How many blocks a running sequence holds; all others are free or can be made so."""
        self._names = count()
        self.operations: list[Operation] = []
        self.evicted = 0
        """Blocks that were kept and have made room."""

    @property
    def capacity(self) -> int:
        """Blocks there are."""
        return self._table.capacity

    @property
    def pinned(self) -> int:
        """Blocks that running sequences hold."""
        return self._pinned

    @property
    def kept(self) -> int:
        """Blocks that only kept sequences hold."""
        return self.capacity - self._table.free_blocks - self._pinned

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self._block)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many of the tokens need no row."""
        return self._index.longest(tokens[:-1])[1]

    def fits(self, tokens: Sequence[int], spare: int, without: Iterable[int] = ()) -> bool:
        """Whether `open` would find room if the running sequences `without` were none."""
        return self._has_room(len(tokens), self._source(tokens)[2], spare, without)

    def open(self, tokens: Sequence[int], spare: int) -> tuple[int, int] | None:
        """Begin a running sequence, from the longest prefix that is cached; at least one row is left to run.

        Returns:
            Its name and how many tokens need no row, or None if its blocks and `spare` more are not to be had (and
            nothing changed).
        """
        source, length, shared = self._source(tokens)
        if not self._has_room(len(tokens), shared, spare):
            return None
        sequence = next(self._names)
        if source is not None:
            self._table.fork(source, sequence, length)
            self.operations.append(Fork(source, sequence, length))
            self._pin(shared)
            if source in self._kept:
                self._kept.move_to_end(source)
        # one is left for what takes the place of a kept sequence that is shortened
        while self._most is not None and len(self._table) + (source is None) >= self._most:
            self.free(next(iter(self._kept)))
        self._take(sequence, self.blocks_for(len(tokens)) - len(shared))
        return sequence, length

    def grow(self, sequence: int, length: int) -> bool:
        """Make room for the first `length` tokens of a running sequence; False if running ones hold all there is."""
        missing = self.blocks_for(length) - self._table.length(sequence) // self._block
        if missing > 0:
            if self._pinned + missing > self.capacity:
                return False
            self._take(sequence, missing)
        return True

    def done(self, sequence: int, tokens: Sequence[int], length: int) -> None:
        """Learn that every stage has the rows of the first `length` tokens, so that others can fork them.

        Rows on their way would be there in time too, but should their step fail, it would take all that forked
        them along, and what has forked those, without end. A sequence that is no more is ignored.
        """
        if self._enabled and sequence in self._table:
            self._index.extend(sequence, tokens, length)

    def rest(self, sequence: int, length: int) -> None:
        """End a running sequence of which `length` tokens were sent; keep it if it has a block that no kept one has."""
        twins = self._index.twins(sequence)
        if twins and self._kept.keys().isdisjoint(twins):
            self._unpin(sequence)
            self._table.rollback(sequence, length)  # a prompt has blocks for all its tokens from the start
            self._kept[sequence] = None
        else:
            self.free(sequence)

    def free(self, sequence: int) -> None:
        """End a sequence on every stage."""
        if sequence in self._kept:
            del self._kept[sequence]
        else:
            self._unpin(sequence)
        self._index.remove(sequence)
        self._table.free(sequence)
        self.operations.append(Free(sequence))

    def take_operations(self) -> tuple[Operation, ...]:
        """What the next step must carry; they are not told twice."""
        operations, self.operations = tuple(self.operations), []
        return operations

    def _source(self, tokens: Sequence[int]) -> tuple[int | None, int, Sequence[int]]:
        """What such a sequence can be forked from: (sequence, length, blocks)."""
        source, length = self._index.longest(tokens[:-1])
        return source, length, self._table.blocks(source)[: length // self._block] if source is not None else ()

    def _has_room(self, tokens: int, shared: Sequence[int], spare: int, without: Iterable[int] = ()) -> bool:
        pins = Counter(block for sequence in without for block in self._table.blocks(sequence))
        released = {block for block, times in pins.items() if times == self._pins[block]}
        taken = sum(not self._pins[block] or block in released for block in shared)
        fresh = self.blocks_for(tokens) - len(shared)
        return self._pinned - len(released) + taken + fresh + spare <= self.capacity

    def _take(self, sequence: int, blocks: int) -> None:
        """Give a running sequence so many more blocks; kept ones make room."""
        while (missing := blocks - self._table.free_blocks) > 0:
            self._shorten(next(iter(self._kept)), missing)
        self._table.extend([SequenceRows(sequence, self._table.length(sequence), blocks * self._block)])
        self._pin(self._table.blocks(sequence)[-blocks:])

    def _shorten(self, sequence: int, blocks: int) -> None:
        """Take blocks from the end of a kept sequence, or all it has; what it shares makes no room."""
        held, free = self._table.blocks(sequence), self._table.free_blocks
        left = len(held)
        while left and blocks:
            left -= 1
            blocks -= self._table.holders(held[left]) == 1
        length = min(left * self._block, self._index.length(sequence))
        heir = next(self._names)
        if self._index.shorten(sequence, heir, length):
            self._table.fork(sequence, heir, length)
            self.operations.append(Fork(sequence, heir, length))
            self._kept[heir] = None
            self._kept.move_to_end(heir, last=False)
        self.free(sequence)
        self.evicted += self._table.free_blocks - free

    def _pin(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._pinned += not self._pins[block]
            self._pins[block] += 1

    def _unpin(self, sequence: int) -> None:
        for block in self._table.blocks(sequence):
            self._pins[block] -= 1
            self._pinned -= not self._pins[block]


def _upwards(node: _Node) -> Iterator[_Node]:
    """A node and those above it, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent
