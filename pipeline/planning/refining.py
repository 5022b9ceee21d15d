"""Moving the edges of a planned chain by half a layer, where that makes it faster. Pure."""

from __future__ import annotations

from itertools import pairwise

from pipeline.planning.candidates import Candidate, Chain, candidate_of
from pipeline.planning.halves import dealt
from pipeline.planning.plan import Wish
from pipeline.planning.prediction import Pace, Times, paces
from pipeline.planning.room import Room, kv_tokens
from shards.edges import Edge, attentions, feed_forwards

WORTHWHILE = 1.01
"""Edges are moved for so many times the tokens a second: less is noise."""


class Refinement:
    """Refines what was chosen, each chain once."""

    def __init__(self, times: Times, room: Room, wish: Wish) -> None:
        self._times, self._room, self._wish = times, room, wish
        self._chains: dict[Chain, Chain] = {}

    def candidate(self, candidate: Candidate) -> Candidate:
        """The same chains of the same nodes, their edges moved where that pays."""
        return candidate_of(tuple(map(self._refined, candidate.chains)))

    def _refined(self, chain: Chain) -> Chain:
        if chain not in self._chains:
            self._chains[chain] = self._better(chain) or chain
        return self._chains[chain]

    def _better(self, chain: Chain) -> Chain | None:
        """The chain with the least time of the slowest stage; None if that is no faster."""
        nodes, users, times = chain.nodes, chain.users, self._times
        pace = min(paces(users), key=lambda pace: times.step(nodes, pace.rows).period(chain.layers, pace.in_flight))
        edges = self._edges(chain, pace)
        if edges is None:
            return None
        layers, halves = dealt(edges)
        rate = users * 1e3 / times.period(nodes, layers, users, halves)
        if rate < WORTHWHILE * chain.rate:
            return None
        return Chain(nodes, users, layers, rate, 1e3 / times.step(nodes, 1, halves=halves).traversal(layers), halves)

    def _edges(self, chain: Chain, pace: Pace) -> tuple[Edge, ...] | None:
        """The best of all ways to move edges by half a layer or not, as far as memory allows; exact."""
        step, tokens = self._times.step(chain.nodes, pace.rows), kv_tokens(chain.users, self._wish.context)
        divides = [self._times.divides(node) for node in chain.nodes]
        ends: list[tuple[Edge, ...]] = [
            (edge, edge - 0.5, edge + 0.5) if all(both) else (edge,)
            for edge, both in zip(chain.edges[1:-1], pairwise(divides), strict=True)
        ]
        ways: dict[Edge, tuple[float, tuple[Edge, ...]]] = {0: (0.0, (0,))}  # by the last edge so far
        for index, (node, options) in enumerate(zip(chain.nodes, [*ends, chain.edges[-1:]], strict=True)):
            longer: dict[Edge, tuple[float, tuple[Edge, ...]]] = {}
            for end in options:
                for begin, (before, edges) in ways.items():
                    if end - begin < 1 or not self._room.takes(node, begin, end, tokens):
                        continue
                    rest = feed_forwards(begin, end)
                    more = attentions(begin, end) - rest
                    slowest = max(before, step.stage(index, rest) + more * step.attention[index])
                    if end not in longer or slowest < longer[end][0]:
                        longer[end] = slowest, (*edges, end)
            ways = longer
        return next((edges for _, edges in ways.values()), None)
