"""The requests of a load, as they come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

from pipeline.messages import Request, Sampling
from pipeline.simulation.loads import Cohort, Load

_SHARED = 1
"""The token that shared prefixes are made of; every request has one of its own for the rest."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and when it comes, in ms."""

    at: float
    cohort: str
    user: int
    request: Request


class Arrivals:
    """Gives the requests of a load: those whose time is known, and those that follow the end of another.

    The nth request of a cohort is the same whichever policy runs it.
    """

    def __init__(self, load: Load) -> None:
        self._cohorts = {cohort.name: _Requests(cohort, load.seed, i) for i, cohort in enumerate(load.cohorts)}
        self._open: dict[str, Arrival] = {}
        self.tokens = sum(cohort.tokens for cohort in self._cohorts.values())
        """Of all answers."""

    def first(self) -> list[Arrival]:
        """Those whose time is known from the start."""
        arrivals = [arrival for cohort in self._cohorts.values() for arrival in cohort.first()]
        self._open = {arrival.request.id: arrival for arrival in arrivals}
        return arrivals

    def after(self, request: str, now: float) -> Arrival | None:
        """What follows from the end of a request."""
        ended = self._open.pop(request)
        following = self._cohorts[ended.cohort].after(ended.user, now)
        if following is not None:
            self._open[following.request.id] = following
        return following


class _Requests:
    """Those of one cohort."""

    def __init__(self, cohort: Cohort, seed: int, number: int) -> None:
        self._cohort, self._number, self._made = cohort, number, 0
        self._random = Random(f"{seed} {number}")
        self._lengths = [
            (cohort.prompt_tokens.draw(self._random, i), cohort.new_tokens.draw(self._random, i))
            for i in range(cohort.requests)
        ]
        """Of prompt and answer, for each request."""
        self.tokens = sum(new for _, new in self._lengths)

    def first(self) -> list[Arrival]:
        cohort = self._cohort
        if cohort.rate is not None:
            gaps = (self._random.expovariate(cohort.rate / 1e3) for _ in range(cohort.requests))
            times = list(accumulate(gaps, initial=cohort.start_ms))[: cohort.requests]
        elif cohort.at_ms:
            times = [cohort.start_ms + at for at in cohort.at_ms]
        else:
            times = [cohort.start_ms + cohort.interval_ms * user for user in range(cohort.users)]
        return [self._make(at, i % cohort.users) for i, at in enumerate(times)]

    def after(self, user: int, now: float) -> Arrival | None:
        if self._cohort.arrivals != "closed" or self._made == self._cohort.requests:
            return None
        return self._make(now, user)

    def _make(self, at: float, user: int) -> Arrival:
        cohort = self._cohort
        prompt, new = self._lengths[self._made]
        own = 2 + self._made + 1_000_000 * self._number
        request = Request(
            f"{cohort.name} {self._made}",
            (_SHARED,) * cohort.shared_prefix + (own,) * (prompt - cohort.shared_prefix),
            Sampling(),
            new,
            client=cohort.client or f"{cohort.name} {user}",
            priority=cohort.priority,
            service=cohort.service,
        )
        self._made += 1
        return Arrival(at, cohort.name, user, request)
