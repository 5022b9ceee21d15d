"""Chains and sets of chains the planner chooses from, each dealt and predicted once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import NamedTuple

from pipeline.planning.dealing import Deal
from pipeline.planning.halves import Halves, edges_of
from pipeline.planning.plan import Wish
from pipeline.planning.prediction import Times, paces
from pipeline.planning.room import Room, kv_tokens
from shards.edges import Edge

Nodes = tuple[int, ...]
"""The nodes of a chain in order, as places in the list of offers."""


class Chain(NamedTuple):
    """Nodes in order, with their layers dealt for the most tokens a second."""

    nodes: Nodes
    users: int
    layers: tuple[int, ...]
    rate: float
    """Tokens a second of all its users."""
    one_user: float
    """Tokens a second of a user alone."""
    halves: Halves = ()

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Where each stage begins, and where the last ends."""
        return edges_of(self.layers, self.halves)


class Candidate(NamedTuple):
    """Chains that serve all users together."""

    chains: tuple[Chain, ...]
    nodes: frozenset[int]
    """All in use; each carries one stage."""
    rate: float
    """Tokens a second of all users."""
    one_user: float
    """Tokens a second of a user alone, on the chain that is best for that."""

    @property
    def key(self) -> frozenset[Nodes]:
        """What tells it from others: the nodes of each chain."""
        return frozenset(chain.nodes for chain in self.chains)


class Candidates:
    """Deals layers and users, and remembers; a set of chains is named by the nodes of each."""

    def __init__(self, times: Times, room: Room, layers: int, wish: Wish) -> None:
        self._times, self._room, self._layers, self._wish = times, room, layers, wish
        self.work = 0
        """A measure of the time spent, the same on every run: some 20 microseconds each."""
        self._chains: dict[tuple[Nodes, int], Chain | None] = {}
        self._most_users: dict[Nodes, int] = {}
        self._candidates: dict[frozenset[Nodes], Candidate | None] = {}

    def __iter__(self) -> Iterator[Candidate]:
        return (candidate for candidate in self._candidates.values() if candidate is not None)

    def chain(self, nodes: Nodes, users: int) -> Chain | None:
        """The best chain of these nodes in this order for so many users; None if they do not fit."""
        key = nodes, users
        if key not in self._chains:
            self._chains[key] = self._best_chain(nodes, users)
        return self._chains[key]

    def most_users(self, nodes: Nodes) -> int:
        """The most users that fit on a chain."""
        if nodes not in self._most_users:
            fits, too_many = 0, self._wish.users + 1
            tried = self._wish.users  # all of them, most of the time
            while too_many - fits > 1:
                if not self._room.holds(nodes, kv_tokens(tried, self._wish.context)):
                    too_many = tried
                else:
                    fits = tried
                tried = (fits + too_many) // 2
            self._most_users[nodes] = fits
        return self._most_users[nodes]

    def add(self, chains: Iterable[Nodes], *, exactly: bool = False) -> Candidate | None:
        """Deal the users to these chains; None if that breaks the wish or does not fit.

        Args:
            chains: The nodes of each.
            exactly: Try all dealings of users, instead of moving users from chain to chain while that helps.
        """
        key = frozenset(chains)
        if key not in self._candidates:
            ordered, dealt = sorted(key), None
            if self._allowed(ordered):
                dealt = self._all_dealings(ordered) if exactly else self._moved(ordered)
            self._candidates[key] = None if dealt is None else candidate_of(dealt)
        return self._candidates[key]

    def _allowed(self, chains: Sequence[Nodes]) -> bool:
        wish = self._wish
        if not 1 <= len(chains) <= (wish.users if wish.replicas else 1):
            return False
        owners = [self._times.owners[node] for nodes in chains for node in nodes]
        if len(set(owners)) < len(owners):  # a node with two of its engines
            return False
        return all(1 <= len(nodes) <= self._layers and wish.stages in (None, len(nodes)) for nodes in chains)

    def _best_chain(self, nodes: Nodes, users: int) -> Chain | None:
        tokens = kv_tokens(users, self._wish.context)
        most = self._room.most(nodes, tokens)
        if len(nodes) > self._layers or min(most) < 1 or sum(most) < self._layers:
            return None
        self.work += 3
        steps = [(self._times.step(nodes, pace.rows), pace.in_flight) for pace in paces(users)]
        bounds = [step.least_period(self._layers, in_flight) for step, in_flight in steps]
        best, period = None, inf
        for bound, (step, in_flight) in sorted(zip(bounds, steps, strict=True), key=itemgetter(0)):
            if bound >= period:
                break
            self.work += 2
            deal = Deal(step, most, self._layers, in_flight)
            if deal.least_period >= period:
                continue
            self.work += 4
            layers = deal.best(below=period)
            if layers is not None:
                layers = self._room.settle(nodes, layers, tokens)
            if layers is not None and (found := step.period(layers, in_flight)) < period:
                best, period = layers, found
        if best is None:
            return None
        return Chain(nodes, users, best, users * 1e3 / period, 1e3 / self._times.step(nodes, 1).traversal(best))

    def _all_dealings(self, chains: Sequence[Nodes]) -> tuple[Chain, ...] | None:
        """The dealing of users with the largest sum of rates."""
        dealt: Mapping[int, tuple[Chain, ...]] = {0: ()}
        for left, nodes in zip(reversed(range(len(chains))), chains, strict=True):
            more: dict[int, tuple[Chain, ...]] = {}
            for served, others in dealt.items():
                most = self._wish.users - served - left
                for users in range(1 if left else most, most + 1):
                    chain = self.chain(nodes, users)
                    if chain is None:
                        break
                    both = (*others, chain)
                    if served + users not in more or _rate(both) > _rate(more[served + users]):
                        more[served + users] = both
            dealt = more
        return dealt.get(self._wish.users)

    def _moved(self, chains: Sequence[Nodes]) -> tuple[Chain, ...] | None:
        """A dealing of users that no move of users between two chains improves."""
        users = self._wish.users
        if len(chains) == 1:
            alone = self.chain(chains[0], users)
            return None if alone is None else (alone,)
        most = [self.most_users(nodes) for nodes in chains]
        if min(most) < 1 or sum(most) < users:
            return None
        speeds = [sum(1 / (1e-6 + self._times.parts(node, 1).layer) for node in nodes) for nodes in chains]
        shares = [min(m, max(1, int(users * speed / sum(speeds)))) for m, speed in zip(most, speeds, strict=True)]
        while (rest := users - sum(shares)) != 0:
            open_ends = [i for i, share in enumerate(shares) if (share < most[i] if rest > 0 else share > 1)]
            index = max(open_ends, key=lambda i: speeds[i] / shares[i] * rest)
            shares[index] += 1 if rest > 0 else -1
        moved = max(1, users // 16)
        while moved:
            if not self._move(chains, shares, most, moved):
                moved //= 2
        return self._dealt(chains, shares)

    def _move(self, chains: Sequence[Nodes], shares: list[int], most: Sequence[int], moved: int) -> bool:
        """Move so many users from the chain that loses least to the one that gains most, if that helps."""
        gains, losses = [], []
        for i, nodes in enumerate(chains):
            rate = self._rate_of(nodes, shares[i])
            if shares[i] + moved <= most[i]:
                gains.append((self._rate_of(nodes, shares[i] + moved) - rate, i))
            if shares[i] > moved:
                losses.append((rate - self._rate_of(nodes, shares[i] - moved), i))
        pairs = [(gain - loss, to, source) for gain, to in gains for loss, source in losses if to != source]
        better, to, source = max(pairs, default=(0.0, 0, 0))
        if better <= 1e-9:
            return False
        shares[to] += moved
        shares[source] -= moved
        return True

    def _rate_of(self, nodes: Nodes, users: int) -> float:
        chain = self.chain(nodes, users)
        return 0.0 if chain is None else chain.rate

    def _dealt(self, chains: Sequence[Nodes], shares: Sequence[int]) -> tuple[Chain, ...] | None:
        dealt = [self.chain(nodes, share) for nodes, share in zip(chains, shares, strict=True)]
        fitting = tuple(chain for chain in dealt if chain is not None)
        return fitting if len(fitting) == len(chains) else None


def _rate(chains: Iterable[Chain]) -> float:
    return sum(chain.rate for chain in chains)


def candidate_of(chains: tuple[Chain, ...]) -> Candidate:
    """The candidate that has these chains."""
    nodes = frozenset(node for chain in chains for node in chain.nodes)
    return Candidate(chains, nodes, _rate(chains), max(chain.one_user for chain in chains))
