"""Who asks for what, and when."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.messages import Service

_MOST_REQUESTS = 100_000
_MOST_TOKENS = 1_000_000
"""In a prompt, and in an answer."""
_MOST_TOKENS_IN_ALL = 100_000_000
"""In all prompts and answers of a load."""


class Lengths(BaseModel):
    """Numbers of tokens: one for all, one of a list, or one of a range, drawn by the load's seed.

    In TOML: `33`, `[33, 60, 900]`, `{ values = [33, 60, 900], in_turn = true }` or `{ least = 20, most = 400 }`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[int, ...] = ()
    in_turn: bool = Field(False, description="the values one after the other instead of drawn")
    least: int = Field(0, ge=0)
    most: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, int):
            return {"values": (data,)}
        return {"values": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.values and min(self.values) < 1:
            raise ValueError(f"{min(self.values)} is less than 1")
        if not self.values and not 1 <= self.least <= self.most:
            raise ValueError("it is a number, a list of numbers, or { least = A, most = B } with 1 <= A <= B")
        if self.largest > _MOST_TOKENS:
            raise ValueError(f"{self.largest} is more than {_MOST_TOKENS}")
        return self

    @property
    def smallest(self) -> int:
        """The least there can be."""
        return min(self.values) if self.values else self.least

    @property
    def largest(self) -> int:
        """The most there can be."""
        return max(self.values) if self.values else self.most

    def draw(self, random: Random, number: int) -> int:
        """That of the request of this number."""
        if self.in_turn and self.values:
            return self.values[number % len(self.values)]
        return random.choice(self.values) if self.values else random.randint(self.least, self.most)


class Cohort(BaseModel):
    """Users of one kind.

    `together`: each user asks once, one user every `interval_ms`. `closed`: they begin like that, and each asks again
    when it has its answer, until there were `count` requests. `poisson`: `count` requests at `rate` a second, of the
    users in turn. `trace`: requests at the times `at_ms`, of the users in turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "users"
    users: int = Field(ge=1, le=_MOST_REQUESTS)
    arrivals: Literal["together", "poisson", "closed", "trace"] = "together"
    start_ms: float = Field(0.0, ge=0, allow_inf_nan=False)
    interval_ms: float = Field(0.0, ge=0, allow_inf_nan=False)
    rate: float | None = Field(None, gt=0, allow_inf_nan=False, description="requests a second; poisson alone")
    at_ms: tuple[float, ...] = Field((), max_length=_MOST_REQUESTS, description="from `start_ms` on; trace alone")
    count: int | None = Field(None, ge=1, le=_MOST_REQUESTS, description="requests in all; None: one a user")
    prompt_tokens: Lengths
    new_tokens: Lengths
    shared_prefix: int = Field(0, ge=0, description="tokens that all prompts of the load begin with")
    client: str | None = Field(None, description="fairness is between clients; None: each user is one")
    service: Service = "interactive"
    priority: int = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.arrivals == "poisson") != (self.rate is not None):
            raise ValueError("rate goes with poisson arrivals, which need one")
        if self.arrivals == "poisson" and self.interval_ms:
            raise ValueError("interval_ms does not go with poisson arrivals")
        if (self.arrivals == "trace") != bool(self.at_ms):
            raise ValueError("at_ms goes with a trace of arrivals, which needs it")
        if any(not 0 <= a <= b < inf for a, b in pairwise((0.0, *self.at_ms))):
            raise ValueError("at_ms: times begin at 0 or later and never go back")
        if self.arrivals == "trace" and (self.interval_ms or self.count is not None):
            raise ValueError("interval_ms and count do not go with a trace of arrivals")
        if self.arrivals == "together" and self.count is not None:
            raise ValueError("count does not go with arrivals together: each user asks once")
        if self.arrivals == "closed" and self.requests < self.users:
            raise ValueError(f"count is {self.count} for {self.users} users, each of whom asks at least once")
        if self.shared_prefix > self.prompt_tokens.smallest:
            raise ValueError(
                f"shared_prefix is {self.shared_prefix}, and prompts have from {self.prompt_tokens.smallest} tokens on"
            )
        return self

    @property
    def requests(self) -> int:
        """How many there will be."""
        if self.at_ms:
            return len(self.at_ms)
        return self.users if self.count is None else self.count

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer there can be."""
        return self.prompt_tokens.largest + self.new_tokens.largest


class Load(Cohort):
    """A cohort, and others beside it; prompts, answers and times depend on `seed` alone."""

    name: str = Field("", description="without one, the number of users")
    seed: int = 0
    beside: tuple[Cohort, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [cohort.name for cohort in self.beside]
        if len({*names, self.cohorts[0].name}) <= len(names):
            raise ValueError(f"the cohorts beside it need names of their own, these are {names}")
        tokens = sum(cohort.requests * cohort.longest for cohort in self.cohorts)
        if tokens > _MOST_TOKENS_IN_ALL:
            raise ValueError(f"it can have {tokens} tokens, and a simulation runs {_MOST_TOKENS_IN_ALL} at most")
        return self

    @property
    def title(self) -> str:
        """Its name."""
        return self.name or str(self.users)

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """The load's own users first."""
        own = {name: getattr(self, name) for name in Cohort.model_fields if name != "name"}
        return Cohort(**own), *self.beside

    @property
    def all_users(self) -> int:
        """Of all cohorts."""
        return sum(cohort.users for cohort in self.cohorts)
