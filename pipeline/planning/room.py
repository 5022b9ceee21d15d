"""Which layers fit where: a stage's weights and KV cache against the memory its node offers. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, floor
from typing import NamedTuple

from pipeline.planning.plan import ModelSize, NodeOffer
from shards.edges import Edge, attentions

KV_BLOCK = 256
"""A sequence takes whole blocks of KV cache, and no engine has larger ones."""


class Reserve(NamedTuple):
    """Memory for the engine's own buffers: activations of the largest step, weights in the kernels' layout."""

    share: float = 0.05
    bytes: int = 200_000_000

    def usable(self, memory: int) -> int:
        """What is left of `memory` for weights and KV cache; may be negative."""
        return int(memory * (1 - self.share)) - self.bytes

    def needed(self, stage: int) -> int:
        """Memory that leaves `stage` bytes usable."""
        return int((stage + self.bytes) / (1 - self.share)) + 1


def kv_tokens(users: int, context: int) -> int:
    """Tokens of KV cache for so many users."""
    return users * -(-context // KV_BLOCK) * KV_BLOCK


class Room:
    """What fits on the offered nodes; nodes are numbers, their places in `offers`. Engines differ in what they need.

    Layers may differ in size, so how many fit on a stage depends on where it begins. `most` is then the number that
    fits at the best place, and `settle` moves edges to where they really fit. It finds a way if there is one, as long
    as each node can hold at least one layer, whichever.
    """

    def __init__(self, size: ModelSize, offers: Sequence[NodeOffer], reserve: Reserve) -> None:
        self._depth = len(size.layers)
        self.sizes = tuple(offer.size or size for offer in offers)
        """What the model needs on each node."""
        self.usable = tuple(
            reserve.usable(offer.memory) - own.shared for offer, own in zip(offers, self.sizes, strict=True)
        )
        """Bytes of each node for layers, their KV cache, and embedding or head."""
        kinds = list(dict.fromkeys(self.sizes))
        self._kinds = tuple(map(kinds.index, self.sizes))
        self._weights = [[0, *accumulate(kind.layers)] for kind in kinds]
        is_even = all(len(set(kind.layers)) == 1 for kind in kinds)
        self._starts = range(1, min(2, self._depth)) if is_even else range(1, self._depth)
        self._before: dict[tuple[int, int], list[int]] = {}
        self._most: dict[tuple[int, int, bool, bool], int] = {}

    def breadth(self, node: int) -> float:
        """The room of a node, in layers without any KV cache."""
        return self.usable[node] * self._depth / max(1, self._weights[self._kinds[node]][-1])

    def most(self, nodes: tuple[int, ...], kv_tokens: int) -> tuple[int, ...]:
        """The number of layers that fit on each stage of a chain, each for itself and at its best place."""
        last = len(nodes) - 1
        return tuple(self._most_of(node, kv_tokens, i == 0, i == last) for i, node in enumerate(nodes))

    def settle(self, nodes: tuple[int, ...], layers: tuple[int, ...], kv_tokens: int) -> tuple[int, ...] | None:
        """The same layers if they fit, otherwise ones close to them that do; None if there are none."""
        if self._fits(nodes, layers, kv_tokens):
            return layers
        least = [self._depth]  # edges from the last to the first: below them the stages behind cannot hold the rest
        for node in reversed(nodes[1:]):
            before = self._sums(node, kv_tokens)
            room = self.usable[node] - self.sizes[node].head * (least[-1] == self._depth)
            start = bisect_left(before, before[least[-1]] - room) if room >= 0 else self._depth
            least.append(min(max(start, 1), least[-1] - 1))
        least.reverse()
        edges, wanted = [0], accumulate(layers)
        for index, (edge, low) in enumerate(zip(wanted, least, strict=True)):
            high = min(self._end(nodes[index], edges[-1], kv_tokens), self._depth - len(nodes) + index + 1)
            low = max(low, edges[-1] + 1)
            if low > high:
                return None
            edges.append(min(max(edge, low), high))
        return tuple(end - start for start, end in pairwise(edges))

    def holds(self, nodes: tuple[int, ...], kv_tokens: int) -> bool:
        """Whether the model fits on a chain."""
        most = self.most(nodes, kv_tokens)
        if len(nodes) > self._depth or min(most) < 1 or sum(most) < self._depth:
            return False
        dealt, left = [], self._depth
        for behind, fits in zip(reversed(range(len(nodes))), most, strict=True):
            dealt.append(min(fits, left - behind))
            left -= dealt[-1]
        return self.settle(nodes, tuple(dealt), kv_tokens) is not None

    def takes(self, node: int, begin: Edge, end: Edge, kv_tokens: int) -> bool:
        """Whether what is between two edges fits on a node; the weights of a divided layer count whole."""
        size, weights = self.sizes[node], self._weights[self._kinds[node]]
        needed = weights[ceil(end)] - weights[floor(begin)]
        needed += attentions(begin, end) * kv_tokens * size.kv_token
        needed += size.embedding * (begin == 0) + size.head * (end == self._depth)
        return needed <= self.usable[node]

    def _fits(self, nodes: tuple[int, ...], layers: tuple[int, ...], kv_tokens: int) -> bool:
        start = 0
        for node, count in zip(nodes, layers, strict=True):
            end, size, before = start + count, self.sizes[node], self._sums(node, kv_tokens)
            needed = before[end] - before[start] + size.embedding * (start == 0)
            if needed + size.head * (end == self._depth) > self.usable[node]:
                return False
            start = end
        return True

    def _most_of(self, node: int, kv_tokens: int, first: bool, tail: bool) -> int:
        key = node, kv_tokens, first, tail
        if key not in self._most:
            if first:
                end = self._end(node, 0, kv_tokens)
                most = end if not tail or end == self._depth else 0
            elif tail:
                before, room = self._sums(node, kv_tokens), self.usable[node] - self.sizes[node].head
                most = self._depth - max(1, bisect_left(before, before[-1] - room)) if room >= 0 else 0
            else:
                most = max((self._end(node, start, kv_tokens) - start for start in self._starts), default=0)
            self._most[key] = max(0, most)
        return self._most[key]

    def _end(self, node: int, start: int, kv_tokens: int) -> int:
        """The furthest that a stage from layer `start` on can reach; `start` or less if nothing fits."""
        before, size = self._sums(node, kv_tokens), self.sizes[node]
        room = self.usable[node] - size.embedding * (start == 0)
        end = bisect_right(before, before[start] + room) - 1
        if end == self._depth and before[end] - before[start] + size.head > room:
            end -= 1
        return end

    def _sums(self, node: int, kv_tokens: int) -> list[int]:
        """Bytes of the layers before each edge on a node, with their KV cache."""
        key = self._kinds[node], kv_tokens
        if key not in self._before:
            kv = kv_tokens * self.sizes[node].kv_token
            self._before[key] = [weights + edge * kv for edge, weights in enumerate(self._weights[key[0]])]
        return self._before[key]
