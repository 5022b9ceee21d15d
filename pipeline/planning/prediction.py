"""How fast a chain is: from measured parts of stages and links to tokens per second.

A **stage** that runs a step of r rows takes `fixed + layers * layer + embed + head` milliseconds of its node's profile,
embed and head only at the ends of the chain, and `STAGE_MS` more. Of a divided layer the attention counts on the stage
before, and what is left of it on the stage behind, each by its own node's profile. Between measured numbers of rows
each part is linear, beyond the last it goes on with the last slope. Fewer rows never take longer
(`pipeline/monotone.py`).

A **link** takes `latency + rows * bytes / rate`. Between stages a row is its hidden state in f16 and its share of the
header; from the head to the first stage and from the tail to the head it is tokens, a header's share alone.

A step's **traversal** of the chain is all stages, all links and `HEAD_MS` in the head. A single user waits for one
traversal a token. Many users are dealt into m equal groups with a step each on its way, as the scheduler does it
(`pipeline/pacing.py`): every user gets a token in each **period**, and the period is the traversal, or m times the
slowest stage, whichever is longer. Moving a step's bytes keeps a link busy like a stage, so it counts as one; latency
keeps nobody busy. The best m is taken, from 1 to the number of users. More users make larger steps, and those are
cheaper by the row: that is why a chain of n stages with n times the users can match n replicas.

The **first token** of a prompt comes when its last chunk has passed the chain; chunks follow one another at the pace of
the slowest stage. They have at most a step's budget of rows, fewer where overlapping on the stages makes up for it. The
head matrix sees the last row alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from pipeline.monotone import monotone
from pipeline.planning.halves import Halves
from pipeline.planning.plan import HEAD, Link, ModelSize, NodeOffer, Prediction, Wish
from shards.profile import CostProfile

HEAD_MS = 0.4
"""Of a step in the head: scheduling, packing, detokenizing, and answering the users."""

STAGE_MS = 0.3
"""Of a step in a stage beside its engine: taking it, checking it, handing its result on."""

ROW_BYTES = 200
"""Of a row on the wire besides its hidden state: its share of the header and of the timings, or a token's entry."""

UNKNOWN_LATENCY_MS = 0.3
"""One way through a link nobody measured: loopback, mostly; a wired network is not much slower."""

UNKNOWN_BYTES_PER_SECOND = 125e6
"""Gigabit Ethernet, for a link nobody measured."""


class Parts(NamedTuple):
    """Milliseconds of the parts of a step on one node."""

    fixed: float
    embed: float
    layer: float
    head: float
    attention: float
    """Of a layer; 0 where layers are not divided."""


class Hop(NamedTuple):
    """What a link costs, in milliseconds."""

    latency: float
    byte: float


class StepTimes(NamedTuple):
    """Milliseconds of a step on a chain whose layers are not dealt yet."""

    bases: tuple[float, ...]
    """Of each stage without its layers."""
    layer: tuple[float, ...]
    """Of one layer on each stage."""
    way: float
    """On all links, and in the head."""
    transfer: float
    """The longest that a link is busy."""
    attention: tuple[float, ...] = ()
    """Of one layer's attention on each stage."""

    def stage(self, index: int, layers: int) -> float:
        """Of a stage with so many layers."""
        return self.bases[index] + layers * self.layer[index]

    def traversal(self, layers: Sequence[int]) -> float:
        """Once through the chain and back to the head."""
        return self.way + sum(self.bases) + sum(n * layer for n, layer in zip(layers, self.layer, strict=True))

    def slowest(self, layers: Sequence[int]) -> float:
        """The stage or link that is busy the longest."""
        return max(self.transfer, *(self.stage(i, n) for i, n in enumerate(layers)))

    def least_period(self, layers: int, in_flight: int) -> float:
        """What `period` is at least, however so many layers are dealt: as if they could be cut in pieces."""
        rest = sum(self.bases)
        fastest = min(self.layer)
        if fastest <= 0:
            return max(in_flight * self.transfer, self.way + rest)
        speed = sum(1 / layer for layer in self.layer)
        level = (layers + sum(base / layer for base, layer in zip(self.bases, self.layer, strict=True))) / speed
        return max(in_flight * max(self.transfer, level), self.way + rest + layers * fastest)

    def period(self, layers: Sequence[int], in_flight: int) -> float:
        """Time in which each of `in_flight` such steps goes round once."""
        return max(in_flight * self.slowest(layers), self.traversal(layers))


class Pace(NamedTuple):
    """Steps on their way at once, and the users in each."""

    in_flight: int
    rows: int


@cache
def paces(users: int) -> tuple[Pace, ...]:
    """The ways to deal users into equal groups: for each size of a group the fewest groups."""
    return tuple(Pace(m, rows) for rows, m in {-(-users // m): m for m in range(users, 0, -1)}.items())


class Times:
    """Times of any chain over the offered nodes; nodes are numbers, their places in `offers`.

    A node that offers several engines has several numbers; `owners` tells which are the same node.
    """

    def __init__(self, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]) -> None:
        firsts: dict[str, int] = {}
        self.owners = tuple(firsts.setdefault(offer.id, number) for number, offer in enumerate(offers))
        """For each number, the first one of the same node."""
        numbers: dict[str, int | None] = {**firsts, HEAD: None}
        self._hidden_bytes = 2 * size.hidden_size + ROW_BYTES
        self._curves = [_Curves(offer.costs) for offer in offers]
        self._hops = {
            (numbers[link.source], numbers[link.target]): Hop(link.latency_ms, 1e3 / link.bytes_per_second)
            for link in links
            if link.source in numbers and link.target in numbers
        }
        self._parts: dict[tuple[int, int], Parts] = {}
        self._ways: dict[tuple[int, ...], _Way] = {}
        self._steps: dict[tuple[tuple[int, ...], int, bool, Halves], StepTimes] = {}

    def parts(self, node: int, rows: int) -> Parts:
        """What a step of so many rows costs on a node."""
        key = node, rows
        if key not in self._parts:
            self._parts[key] = self._curves[node].at(rows)
        return self._parts[key]

    def hop(self, source: int | None, target: int | None) -> Hop:
        """The link between two nodes; None is the head."""
        ends = self._owner(source), self._owner(target)
        return self._hops.get(ends, Hop(UNKNOWN_LATENCY_MS, 1e3 / UNKNOWN_BYTES_PER_SECOND))

    def divides(self, node: int) -> bool:
        """Whether a node knows what the attention of a layer costs, so that layers may be divided there."""
        return self._curves[node].divides

    def step(self, nodes: tuple[int, ...], rows: int, sampled: bool = True, halves: Halves = ()) -> StepTimes:
        """A step on a chain of these nodes, in this order; all its rows go through the head matrix, or none."""
        key = nodes, rows, sampled, halves
        if key not in self._steps:
            self._steps[key] = self._step(nodes, rows, sampled, halves)
        return self._steps[key]

    def period(self, nodes: tuple[int, ...], layers: Sequence[int], users: int, halves: Halves = ()) -> float:
        """Milliseconds in which each of so many users gets a token, at the best pace."""
        steps = ((self.step(nodes, pace.rows, halves=halves), pace.in_flight) for pace in paces(users))
        return min(step.period(layers, in_flight) for step, in_flight in steps)

    def predict(
        self, nodes: tuple[int, ...], layers: Sequence[int], users: int, wish: Wish, halves: Halves = ()
    ) -> Prediction:
        """What a chain with these layers on its stages gives to so many users."""
        alone = self.step(nodes, 1, halves=halves).traversal(layers)
        period = self.period(nodes, layers, users, halves)
        return Prediction(
            one_user=1e3 / alone,
            users=users,
            many_users=users * 1e3 / period,
            first_token_ms=self._first_token(nodes, layers, wish, halves),
        )

    def _first_token(self, nodes: tuple[int, ...], layers: Sequence[int], wish: Wish, halves: Halves) -> float:
        fewest = -(-wish.prompt // wish.token_budget)
        times = []
        for chunks in range(fewest, min(wish.prompt, fewest + 4 * len(nodes)) + 1):  # as far as PromptBudget looks
            step = self.step(nodes, -(-wish.prompt // chunks), False, halves)
            times.append(step.traversal(layers) + (chunks - 1) * step.slowest(layers))
        return min(times) + self.parts(nodes[-1], 1).head

    def _owner(self, node: int | None) -> int | None:
        return None if node is None else self.owners[node]

    def _step(self, nodes: tuple[int, ...], rows: int, sampled: bool, halves: Halves) -> StepTimes:
        parts = [self.parts(node, rows) for node in nodes]
        bases = [STAGE_MS + part.fixed for part in parts]
        bases[0] += parts[0].embed
        bases[-1] += parts[-1].head * sampled
        for index, half in enumerate(halves):
            if half:
                bases[index] += parts[index].attention
                bases[index + 1] -= parts[index + 1].attention
        way = self._way(nodes)
        return StepTimes(
            bases=tuple(bases),
            layer=tuple(part.layer for part in parts),
            way=HEAD_MS + way.latency + rows * way.row,
            transfer=rows * way.longest,
            attention=tuple(part.attention for part in parts),
        )

    def _way(self, nodes: tuple[int, ...]) -> _Way:
        if nodes not in self._ways:
            hops = [self.hop(source, target) for source, target in pairwise((None, *nodes, None))]
            sizes = ROW_BYTES, *[self._hidden_bytes] * (len(nodes) - 1), ROW_BYTES
            rows = [hop.byte * size for hop, size in zip(hops, sizes, strict=True)]
            self._ways[nodes] = _Way(sum(hop.latency for hop in hops), sum(rows), max(rows))
        return self._ways[nodes]


class _Way(NamedTuple):
    """All links of a chain: their latency, a row on all of them, and a row on the slowest; in milliseconds."""

    latency: float
    row: float
    longest: float


class _Curves:
    """A profile's parts as functions of the number of rows."""

    def __init__(self, costs: CostProfile) -> None:
        self._rows = costs.rows
        self.divides = bool(costs.attention)
        columns = (costs.fixed, costs.embed, costs.layer, costs.head, costs.attention or (0.0,) * len(costs.rows))
        self._columns = [monotone(column) for column in columns]

    def at(self, rows: int) -> Parts:
        return Parts(*(self._value(column, rows) for column in self._columns))

    def _value(self, times: Sequence[float], rows: int) -> float:
        measured = self._rows
        if rows <= measured[0] or len(measured) == 1:
            return times[0]
        above = min(bisect_left(measured, rows), len(measured) - 1)
        (r0, r1), (t0, t1) = measured[above - 1 : above + 1], times[above - 1 : above + 1]
        return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)
