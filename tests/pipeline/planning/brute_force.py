"""The best plan by trying everything, written from the description of the model and not from the planner's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise, permutations
from math import ceil, inf

from pipeline.planning.plan import HEAD, Link, ModelSize, NodeOffer, Wish


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as an ordered sum of `parts` positive numbers."""
    for cuts in combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, total)))


class BruteForce:
    def __init__(self, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link], wish: Wish) -> None:
        self.size, self.wish, self.depth = size, wish, len(size.layers)
        self.offers = {offer.id: offer for offer in offers}
        self.links = {(link.source, link.target): link for link in links}
        self.chain_rate = cache(self._chain_rate)

    def rates(self) -> dict[int, float]:
        """The best tokens a second for each number of stages."""
        best: dict[int, float] = {}
        for count in range(1, len(self.offers) + 1):
            for order in permutations(self.offers, count):
                for chains in self._cut(order):
                    for shares in splits(self.wish.users, len(chains)):
                        rate = sum(map(self.chain_rate, chains, shares))
                        if rate > best.get(count, 0.0):
                            best[count] = rate
        return best

    def _cut(self, order: tuple[str, ...]) -> Iterator[list[tuple[str, ...]]]:
        for count in range(1, len(order) + 1):
            for lengths in splits(len(order), count):
                edges = [sum(lengths[:i]) for i in range(count + 1)]
                chains = [order[a:b] for a, b in pairwise(edges)]
                as_many_stages = self.wish.stages is None or set(lengths) == {self.wish.stages}
                if as_many_stages and (count == 1 or self.wish.replicas):
                    yield chains

    def _chain_rate(self, nodes: tuple[str, ...], users: int) -> float:
        tokens = users * ceil(self.wish.context / 256) * 256
        best = -inf
        for layers in splits(self.depth, len(nodes)):
            edges = [sum(layers[:i]) for i in range(len(layers) + 1)]
            stages = list(zip(nodes, pairwise(edges), strict=True))
            if all(self.size.stage(*span, tokens) <= self.offers[name].memory for name, span in stages):
                best = max(best, *(self._rate(nodes, layers, users, groups) for groups in range(1, users + 1)))
        return best

    def _rate(self, nodes: tuple[str, ...], layers: tuple[int, ...], users: int, groups: int) -> float:
        rows = ceil(users / groups)
        busy, latencies = [], []
        for place, (name, count) in enumerate(zip(nodes, layers, strict=True)):
            costs = self.offers[name].costs
            time = 0.3 + self._at(costs.rows, costs.fixed, rows) + count * self._at(costs.rows, costs.layer, rows)
            if place == 0:
                time += self._at(costs.rows, costs.embed, rows)
            if place == len(nodes) - 1:
                time += self._at(costs.rows, costs.head, rows)
            busy.append(time)
        for source, target in pairwise((HEAD, *nodes, HEAD)):
            link = self.links.get((source, target))
            latency, rate = (link.latency_ms, link.bytes_per_second) if link else (0.3, 125e6)
            row = 200 if HEAD in (source, target) else 200 + 2 * self.size.hidden_size
            busy.append(1e3 * rows * row / rate)
            latencies.append(latency)
        period = max(groups * max(busy), 0.4 + sum(busy) + sum(latencies))
        return users * 1e3 / period

    @staticmethod
    def _at(measured: tuple[int, ...], times: tuple[float, ...], rows: int) -> float:
        for (r0, t0), (r1, t1) in pairwise(zip(measured, times, strict=True)):
            if rows <= r1 or r1 == measured[-1]:
                return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)
        return times[0]
