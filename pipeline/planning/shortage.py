"""What to say when a model fits nowhere: how much is missing, on which split, and what would fit instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.planning.amounts import amount
from pipeline.planning.candidates import Nodes
from pipeline.planning.plan import NodeOffer, Wish
from pipeline.planning.room import KV_BLOCK, Reserve, Room, kv_tokens
from shards.errors import CapacityError


class _Need(NamedTuple):
    """What a node would need for its part of a split."""

    node: int
    first: int
    end: int
    needed: int
    missing: int


class Shortage:
    """Explains why no plan fits, with the one chain that misses the least; nodes are their places in `offers`.

    Of a node that offers several engines, the one counts that finds room for the most layers.
    """

    def __init__(
        self, offers: Sequence[NodeOffer], room: Room, owned: Sequence[Nodes], wish: Wish, reserve: Reserve
    ) -> None:
        self._offers, self._room, self._wish, self._reserve = offers, room, wish, reserve
        self._nodes = [max(own, key=room.breadth) for own in owned]
        self._depth = len(room.sizes[0].layers)
        first, *others = sorted(self._nodes, key=lambda node: -room.breadth(node))
        longest = min(len(self._nodes), self._depth)
        counts = [wish.stages] if wish.stages else range(1, longest + 1)
        self._chains = [(first, *others[1:count], *others[:1])[:count] for count in counts]
        """The largest nodes, with the two largest at the ends."""

    def error(self) -> CapacityError:
        """The error to raise."""
        wish, offers = self._wish, self._offers
        split = min(map(self._split, self._chains), key=lambda needs: sum(need.missing for need in needs))
        parts = [
            f"{offers[need.node].name} offers {amount(offers[need.node].memory)}"
            f" and would need {amount(need.needed)} for layers {need.first}-{need.end - 1}"
            for need in split
        ]
        in_use = {need.node for need in split}
        parts += [
            f"{offers[node].name} offers {amount(offers[node].memory)}, too little to help"
            for node in self._nodes
            if node not in in_use
        ]
        missing = sum(need.missing for need in split)
        return CapacityError(
            f"the model does not fit: for {_asked(wish.users, wish.context)} {amount(missing)} of memory are missing"
            f" in all ({'; '.join(parts)})",
            hint=self._hint(split),
        )

    def _hint(self, split: Sequence[_Need]) -> str:
        wish = self._wish
        users = _largest(lambda users: self._fits(users, wish.context), wish.users - 1)
        context = self._most_context(wish.users)
        nearest = [(users, wish.context), (wish.users, context)]
        if not users and not context:
            nearest = [(1, self._most_context(1))]
        ways = [f"for {_asked(*near)}" for near in nearest if min(near) > 0]
        more = [f"{amount(need.missing)} more on {self._offers[need.node].name}" for need in split if need.missing]
        return f"It would fit {', or '.join([*ways, 'with ' + ' and '.join(more)])}."

    def _most_context(self, users: int) -> int:
        return KV_BLOCK * _largest(
            lambda blocks: self._fits(users, blocks * KV_BLOCK), (self._wish.context - 1) // KV_BLOCK
        )

    def _fits(self, users: int, context: int) -> bool:
        return any(self._room.holds(nodes, kv_tokens(users, context)) for nodes in self._chains)

    def _split(self, nodes: tuple[int, ...]) -> list[_Need]:
        """Each layer goes where the fewest bytes are missing for it."""
        tokens = kv_tokens(self._wish.users, self._wish.context)
        sizes = [self._room.sizes[node] for node in nodes]
        layer = [max(size.layers) + tokens * size.kv_token for size in sizes]
        free = [self._room.usable[node] - one for node, one in zip(nodes, layer, strict=True)]
        free[0] -= sizes[0].embedding
        free[-1] -= sizes[-1].head
        counts = [1] * len(nodes)
        for _ in range(self._depth - len(nodes)):
            roomiest = max(range(len(nodes)), key=free.__getitem__)
            counts[roomiest] += 1
            free[roomiest] -= layer[roomiest]
        needs, first = [], 0
        for node, size, count in zip(nodes, sizes, counts, strict=True):
            needed = self._reserve.needed(size.stage(first, first + count, tokens))
            missing = max(0, needed - self._offers[node].memory)
            needs.append(_Need(node, first, first + count, needed, missing))
            first += count
        return needs


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, 0 if none does; what fits, fits with less as well."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _asked(users: int, context: int) -> str:
    return f"{users} {'user' if users == 1 else 'users'} with {context} tokens of context"
