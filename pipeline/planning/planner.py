"""Which node gets which layers: the plan with the most tokens a second for the wished users, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pipeline.planning.candidates import Candidate, Chain
from pipeline.planning.plan import (
    ChainPlan,
    LeftOut,
    Link,
    ModelSize,
    NodeOffer,
    Plan,
    Prediction,
    StagePlan,
    Wish,
)
from pipeline.planning.prediction import Times
from pipeline.planning.reasons import Reasons
from pipeline.planning.refining import Refinement
from pipeline.planning.room import Reserve, Room, kv_tokens
from pipeline.planning.search import Search, choose, fastest, lacking, using
from pipeline.planning.shortage import Shortage
from shards.edges import layers_between
from shards.errors import CapacityError, ConfigurationError


def plan(
    size: ModelSize,
    offers: Sequence[NodeOffer],
    links: Sequence[Link],
    wish: Wish,
    reserve: Reserve = Reserve(),  # noqa: B008 (immutable)
) -> Plan:
    """The plan with the most tokens a second for the wish's users; among those as good within 3 % the one with the
    fewest stages, then the best for a single user.

    A node may offer several engines, of which the plan takes the one that gives it the most; a chain may mix engines.
    The plan does not depend on the order of offers or links. With few nodes it is the best there is (`Search` says
    when); layers of different sizes, where memory is tight, may cost it a layer's time. Where nodes know what attention
    costs, the edges between stages are then moved by half a layer if that makes a chain faster.

    Raises:
        CapacityError: nothing fits; says how much is missing on which split, and what would fit.
        ConfigurationError: the wish is for more stages than the model has layers.
    """
    return _Planner(size, offers, links, wish, reserve).plan()


class _Planner:
    def __init__(
        self, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link], wish: Wish, reserve: Reserve
    ) -> None:
        self._size, self._wish, self._reserve = size, wish, reserve
        self._offers = sorted(offers, key=lambda offer: (offer.id, offer.costs.engine))
        self._times = Times(size, self._offers, links)
        self._room = Room(size, self._offers, reserve)
        self._refinement = Refinement(self._times, self._room, wish)
        self._search = Search(self._times, self._room, len(offers), len(size.layers), wish)

    def plan(self) -> Plan:
        depth, wanted = len(self._size.layers), self._wish.stages
        if wanted is not None and wanted > depth:
            raise ConfigurationError(
                f"{depth} layers cannot be split into {wanted} stages",
                where="stages",
                hint=f"Ask for 1 to {depth} stages.",
            )
        if (count := len(self._search.owned)) < (wanted or 1):
            raise CapacityError(
                f"{wanted or 1} stages need as many nodes, and {count} are there",
                hint="Let more nodes join, or ask for fewer stages." if self._offers else "Let a node join.",
            )
        self._search.run()
        chosen = self._refined(choose(self._search.candidates))
        if chosen is None:
            raise Shortage(self._offers, self._room, self._search.owned, self._wish, self._reserve).error()
        return Plan(
            chains=tuple(self._chain(chain) for chain in _best_first(chosen)),
            prediction=self._prediction(chosen),
            left_out=self._left_out(chosen),
            without={
                self._offers[offers[0]].id: self._predicted(self._refined(choose(self._search.among(lacking(offers)))))
                for offers in self._search.owned
                if not chosen.nodes.isdisjoint(offers)
            },
        )

    def _chain(self, chain: Chain) -> ChainPlan:
        tokens = kv_tokens(chain.users, self._wish.context)
        stages = tuple(
            StagePlan(
                node=self._offers[node].id,
                **layers_between(begin, end),
                engine=self._offers[node].costs.engine,
                memory=self._room.sizes[node].stage(begin, end, tokens),
            )
            for node, (begin, end) in zip(chain.nodes, pairwise(chain.edges), strict=True)
        )
        return ChainPlan(stages=stages, users=chain.users, kv_tokens=tokens, prediction=self._chain_prediction(chain))

    def _chain_prediction(self, chain: Chain) -> Prediction:
        return self._times.predict(chain.nodes, chain.layers, chain.users, self._wish, chain.halves)

    def _refined(self, candidate: Candidate | None) -> Candidate | None:
        return None if candidate is None else self._refinement.candidate(candidate)

    def _predicted(self, candidate: Candidate | None) -> Prediction | None:
        return None if candidate is None else self._prediction(candidate)

    def _prediction(self, candidate: Candidate) -> Prediction:
        """Of all chains together; a single user is on the chain that is best for that."""
        chains = list(map(self._chain_prediction, candidate.chains))
        best = max(chains, key=lambda chain: chain.one_user)
        return Prediction(
            one_user=best.one_user,
            users=self._wish.users,
            many_users=sum(chain.many_users for chain in chains),
            first_token_ms=best.first_token_ms,
        )

    def _left_out(self, chosen: Candidate) -> tuple[LeftOut, ...]:
        reasons = Reasons(self._offers, self._times, self._room, self._wish, self._reserve)
        left_out = []
        for offers in self._search.owned:
            if chosen.nodes.isdisjoint(offers):
                forced = self._refined(fastest(self._search.among(using(offers))))
                roomiest = max(offers, key=self._room.breadth)
                node = next((offer for offer in offers if forced and offer in forced.nodes), roomiest)
                reason = reasons.why(node, chosen, forced)
                node_id = self._offers[node].id
                left_out.append(LeftOut(node=node_id, reason=reason, prediction_with=self._predicted(forced)))
        return tuple(left_out)


def _best_first(candidate: Candidate) -> list[Chain]:
    return sorted(candidate.chains, key=lambda chain: (-chain.rate, chain.nodes))
