"""Searching the sets of chains over nodes: all of them on a small fleet, the promising ones on a large. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import combinations, permutations, product
from math import factorial

from pipeline.planning.candidates import Candidate, Candidates, Nodes
from pipeline.planning.plan import Wish
from pipeline.planning.prediction import Times
from pipeline.planning.room import Room

AS_GOOD = 0.97
"""Plans within this share of the fastest count as equally fast: predictions are no better than that."""

_ALL_CHAINS = 6000
"""Look at everything while there are no more orders of nodes times users: 5 nodes with 18 users, 4 with 93."""

_MOST_WORK = 14_000
"""A climb ends here, wherever it is; those with a node forced in or out share as much again. See `Candidates.work`."""

_MUCH_BETTER = 1.01
"""A neighbour so much faster is not compared with the others: the climb goes on from there."""

_BEST = 3
"""So many of the best are looked around."""

Chains = tuple[Nodes, ...]
Where = Callable[[frozenset[int]], bool]
"""Tells from the nodes in use whether a set of chains is of interest."""


def anything(nodes: frozenset[int]) -> bool:
    """All."""
    return True


def using(offers: Nodes) -> Where:
    """Those in which the node with these offers carries something."""
    return lambda nodes: not nodes.isdisjoint(offers)


def lacking(offers: Nodes) -> Where:
    """Those in which the node with these offers carries nothing."""
    return lambda nodes: nodes.isdisjoint(offers)


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one with the most tokens a second for all users."""
    return max(candidates, key=_speed, default=None)


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one with the fewest stages among those as good as the fastest; then the best for a single user."""
    candidates = list(candidates)
    if (best := fastest(candidates)) is None:
        return None
    as_good = (candidate for candidate in candidates if candidate.rate >= AS_GOOD * best.rate)
    return min(as_good, key=lambda c: (len(c.nodes), -c.one_user, -c.rate))


def _speed(candidate: Candidate) -> tuple[float, int, float]:
    return candidate.rate, -len(candidate.nodes), candidate.one_user


def _best(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The few that are worth looking around: the fastest first, and the one that would be chosen."""
    distinct = list(dict.fromkeys(candidates))
    chosen = choose(distinct)
    return list(dict.fromkeys([*nlargest(_BEST, distinct, key=_speed), *([chosen] if chosen else [])]))


class Search:
    """Fills `candidates`.

    A node that offers several engines counts as several nodes of which one at most is taken, so engines are chosen by
    the same search. A small fleet is searched whole. A large one is climbed: from simple constructions (the fastest,
    the largest nodes in one chain; replicas of the fewest nodes that fit; with and without the rest), one change at a
    time (add, drop, swap or move a node, cut a chain in two, join two), until nothing around the few best is better.
    Then each node that carries something is forced out, and each other one in, with a shorter climb: so the figures of
    what that would give are those of good plans, if not always of the best.
    """

    def __init__(self, times: Times, room: Room, nodes: int, layers: int, wish: Wish) -> None:
        self.candidates = Candidates(times, room, layers, wish)
        self._nodes, self._wish, self._owners = tuple(range(nodes)), wish, times.owners
        self.owned = owned(self._owners)
        """The offers of each node."""
        self._fastest = self._one_each(lambda node: times.parts(node, 1).layer)
        self._largest = self._one_each(lambda node: -room.breadth(node))
        self._seen: set[frozenset[Nodes]] = set()

    def run(self) -> None:
        """Search."""
        if _orders(self.owned) * self._wish.users <= _ALL_CHAINS:
            for chains in self._all(self.owned):
                self.candidates.add(chains, exactly=True)
            return
        self._construct_replicas(self._fastest)
        self._construct_replicas(self._largest)
        self._construct_chains(anything)
        self._climb(anything, _MOST_WORK)
        if (chosen := choose(self.candidates)) is not None:
            for offers in self.owned:
                is_used = not chosen.nodes.isdisjoint(offers)
                if is_used:
                    self._construct_chains(lacking(offers))
                self._climb(lacking(offers) if is_used else using(offers), _MOST_WORK // len(self.owned))

    def among(self, where: Where) -> list[Candidate]:
        """What was found, in part."""
        return [candidate for candidate in self.candidates if where(candidate.nodes)]

    def _one_each(self, key: Callable[[int], float]) -> list[int]:
        """Of each node the offer with the least key, in the order of these."""
        return sorted((min(offers, key=key) for offers in self.owned), key=key)

    def _all(self, owned: Sequence[Nodes]) -> Iterator[Chains]:
        """Every set of chains over some of the nodes, the empty set too; chains that hold nobody are passed over."""
        if not owned:
            yield ()
            return
        first, others = owned[0], owned[1:]
        yield from self._all(others)
        for count in range(len(others) + 1):
            for fellows in combinations(others, count):
                left = tuple(offers for offers in others if offers not in fellows)
                for members in product(first, *fellows):
                    for chain in permutations(members):
                        if self.candidates.chain(chain, 1) is not None:
                            yield from ((chain, *rest) for rest in self._all(left))

    def _construct_chains(self, where: Where) -> None:
        """One chain of the fastest, or of the largest nodes."""
        nodes: Nodes = ()
        for order in (self._fastest, self._largest):
            nodes = tuple(node for node in order if where(frozenset({node})))
            for count in range(1, len(nodes) + 1):
                self.candidates.add((nodes[:count],))
        if not self.among(where):
            self._try_ends(nodes[: self._wish.stages])

    def _try_ends(self, nodes: Nodes) -> None:
        """Which nodes carry embedding and head may decide whether the model fits."""
        for first, tail in permutations(nodes, 2):
            middle = tuple(node for node in nodes if node not in (first, tail))
            if self.candidates.add(((first, *middle, tail),)) is not None:
                return

    def _construct_replicas(self, order: Sequence[int]) -> None:
        for replicas in range(2, min(len(order), self._wish.users) + 1):
            self._replicate(order, replicas)

    def _replicate(self, order: Sequence[int], replicas: int) -> None:
        """Chains of the fewest nodes that fit, one after another; then the rest of the nodes dealt to them in turn."""
        share = -(-self._wish.users // replicas)
        chains: list[Nodes] = []
        building: Nodes = ()
        rest = list(order)
        while rest and len(chains) < replicas:
            building = (*building, rest.pop(0))
            fits = self.candidates.chain(building, share) is not None
            if fits and self._wish.stages in (None, len(building)):
                chains.append(building)
                building = ()
        if len(chains) < replicas:
            return
        self.candidates.add(chains)
        for index, node in enumerate(rest):
            chains[index % replicas] = (*chains[index % replicas], node)
        self.candidates.add(chains)

    def _climb(self, where: Where, most_work: int) -> None:
        """Look around the best candidates until all of them have been looked around."""
        limit, found = self.candidates.work + most_work, self.among(where)
        while True:
            found = _best(found)
            candidate = next((each for each in found if each.key not in self._seen), None)
            if candidate is None:
                return
            for neighbour in self._neighbours(tuple(chain.nodes for chain in candidate.chains)):
                if self.candidates.work > limit:
                    return
                if where(frozenset().union(*neighbour)) and (new := self.candidates.add(neighbour)) is not None:
                    found.append(new)
                    if new.rate > _MUCH_BETTER * found[0].rate:
                        break
            else:
                self._seen.add(candidate.key)

    def _neighbours(self, chains: Chains) -> Iterator[Chains]:
        """Sets of chains that are one change away."""
        used = [node for chain in chains for node in chain]
        taken = {self._owners[node] for node in used}
        unused = [node for node in self._nodes if self._owners[node] not in taken]
        for node in unused:
            yield from _placed(chains, node)
        for node in used:
            without = _without(chains, node)
            yield without
            yield from _placed(without, node)
        for node in used:
            for other in self._nodes:
                is_engine = other != node and self._owners[other] == self._owners[node]
                if other in unused or is_engine or (other in used and other > node):
                    yield _swapped(chains, node, other)
        for chain in chains:
            others = _less(chains, chain)
            yield from ((*others, chain[:cut], chain[cut:]) for cut in range(1, len(chain)))
            yield from ((*_less(others, other), (*chain, *other)) for other in others)


def owned(owners: Sequence[int]) -> tuple[Nodes, ...]:
    """The offers of each node, given the owner of each offer."""
    by_owner: dict[int, list[int]] = {}
    for offer, owner in enumerate(owners):
        by_owner.setdefault(owner, []).append(offer)
    return tuple(map(tuple, by_owner.values()))


def _orders(owned: Sequence[Nodes]) -> int:
    """How many chains there are of some of the nodes, with one of the offers of each."""
    sets = [1]
    """By the number of nodes."""
    for offers in owned:
        sets = [a + len(offers) * b for a, b in zip((*sets, 0), (0, *sets), strict=True)]
    return sum(count * factorial(length) for length, count in enumerate(sets) if length)


def _less(chains: Chains, chain: Nodes) -> Chains:
    return tuple(other for other in chains if other is not chain)


def _placed(chains: Chains, node: int) -> Iterator[Chains]:
    """The node at every place of every chain, and alone."""
    for chain in chains:
        for place in range(len(chain) + 1):
            yield (*_less(chains, chain), (*chain[:place], node, *chain[place:]))
    yield (*chains, (node,))


def _without(chains: Chains, node: int) -> Chains:
    kept = (tuple(other for other in chain if other != node) for chain in chains)
    return tuple(chain for chain in kept if chain)


def _swapped(chains: Chains, node: int, other: int) -> Chains:
    instead = {node: other, other: node}
    return tuple(tuple(instead.get(each, each) for each in chain) for chain in chains)
