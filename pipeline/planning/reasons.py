"""Why a node carries nothing, in a sentence with the figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pipeline.planning.amounts import amount
from pipeline.planning.candidates import Candidate
from pipeline.planning.plan import NodeOffer, Wish
from pipeline.planning.prediction import Times
from pipeline.planning.room import Reserve, Room, kv_tokens

_SLOWER = 1.5
"""A node is to blame for a layer, or links for a row, that takes so many times as long as elsewhere."""

_NUMBERS = ("", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Reasons:
    """Compares plans with and without a node; nodes are numbers, their places in `offers`."""

    def __init__(
        self,
        offers: Sequence[NodeOffer],
        times: Times,
        room: Room,
        wish: Wish,
        reserve: Reserve,
    ) -> None:
        self._offers, self._times = offers, times
        self._room, self._wish, self._reserve = room, wish, reserve

    def why(self, node: int, chosen: Candidate, forced: Candidate | None) -> str:
        """Why `node` is not in the chosen plan; `forced` is the best one that has it."""
        if forced is None:
            return self._too_small(node)
        if forced.rate <= chosen.rate:
            change = f"would make it {forced.rate:.1f} tok/s instead of {chosen.rate:.1f}"
        else:
            more = 100 * (forced.rate / chosen.rate - 1)
            change = f"would add {more:.1f} % ({forced.rate:.1f} tok/s instead of {chosen.rate:.1f})"
            if len(forced.nodes) > len(chosen.nodes):
                return f"{change}, too little for a stage more"
            change += f", and a user alone would have {forced.one_user:.1f} instead of {chosen.one_user:.1f}"
        return f"{change}: {self._cause(node, chosen, forced)}"

    def _cause(self, node: int, chosen: Candidate, forced: Candidate) -> str:
        fastest = min(chosen.nodes, key=lambda other: self._times.parts(other, 1).layer)
        own, best = (self._times.parts(each, 1).layer for each in (node, fastest))
        if best > 0 and own >= _SLOWER * best:
            times = own / best
            how = _NUMBERS[round(times)] if 1.9 <= times < 10.5 else f"{times:.3g}"
            return f"its layers take {own:.2f} ms each, {how} times {self._offers[fastest].name}'s {best:.2f} ms"
        way = self._way(node, forced)
        others = max(self._way(each, chosen) for each in chosen.nodes)
        if way >= _SLOWER * others:
            return f"a step is {way:.1f} ms on the links to it and from it, and at most {others:.1f} ms on others'"
        if len(forced.nodes) <= len(chosen.nodes):
            return "the node whose place it would take does better there"
        return f"it would be one stage more, and its links add {way:.1f} ms to every step"

    def _way(self, node: int, candidate: Candidate) -> float:
        """Milliseconds that a row is on the links to and from a node."""
        (nodes,) = (chain.nodes for chain in candidate.chains if node in chain.nodes)
        hops = [self._times.hop(*pair) for pair in pairwise((None, *nodes, None)) if node in pair]
        return sum(hop.latency + 2 * self._room.sizes[node].hidden_size * hop.byte for hop in hops)

    def _too_small(self, node: int) -> str:
        offered, size, wish = self._offers[node].memory, self._room.sizes[node], self._wish
        tokens = kv_tokens(1 if wish.replicas else wish.users, wish.context)
        layer = min(size.layers) + tokens * size.kv_token
        if self._room.usable[node] < layer:
            needed = self._reserve.needed(size.shared + layer)
            return f"offers {amount(offered)}, and a single layer with its KV cache needs {amount(needed)}"
        return f"no plan has a place for it with the {amount(offered)} it offers"
