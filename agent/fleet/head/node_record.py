"""What the head knows of a node."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from time import monotonic, time
from typing import Any, Self

from agent.fleet.control.messages import Condition, Hello, LinkMeasure, ModelMeasured, Neighbour
from shards.profile import CostProfile
from shards.runtime import EngineName

_LONGEST_WORK = 200
"""Characters of what a node says that it does."""
_LONGEST_WHY = 1000
"""Characters of what a node says of why it cannot do something."""

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0
"""Seconds until a node that has failed is tried again; they double with each failure that follows."""
_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Work:
    """Something a node does beside serving. 0 of 0: nobody knows how far it is."""

    what: str
    done: float = 0.0
    total: float = 0.0

    @classmethod
    def told(cls, what: str, done: float, total: float) -> Self:
        """What a node says of it, within bounds."""
        if not (isfinite(total) and 0 <= done <= total):
            done = total = 0.0
        return cls(what[:_LONGEST_WORK], done, total)


@dataclass(frozen=True, slots=True)
class Setback:
    """Why a node is not planned with."""

    why: str
    pause: float
    """Seconds from `since` until it is tried again; infinite: not before it has joined again."""
    since: float
    """On the monotonic clock."""

    def left(self, now: float) -> float:
        """Seconds until it is tried again."""
        return self.since + self.pause - now

    def told(self, now: float) -> str:
        """For people."""
        if self.pause == inf:
            return f"{self.why} (not tried again until it joins again)"
        left = self.left(now)
        when = f"in {left / 60:.0f} min" if left >= 90 else f"in {left:.0f} s" if left >= 1 else "in a moment"
        return f"{self.why} (tried again {when})"


@dataclass(slots=True)
class NodeRecord:
    """A node that is in; changed by its head alone."""

    key: str
    name: str
    hello: Hello
    address: str
    condition: Condition
    since: float = field(default_factory=time)
    device: str | None = None
    """The one its OpenVINO stages run on; None while that is not chosen."""
    costs: tuple[CostProfile, ...] = ()
    """Of each engine that was measured."""
    asked_at: float | None = None
    """Since when it is measuring, on the monotonic clock."""
    measuring: Future[ModelMeasured] | None = None
    links: dict[str, LinkMeasure] = field(default_factory=dict)
    """By the other node's key; replaced as a whole."""
    unreachable: set[str] = field(default_factory=set)
    """Keys of nodes it found no way to."""
    work: Work | None = None
    """What it is doing beside serving: fetching, measuring, compiling a stage."""
    setback: Setback | None = None
    failures: int = 0
    """In a row."""

    @property
    def neighbour(self) -> Neighbour:
        """How others reach it."""
        # the address it came from is one that works, whatever it says of itself
        addresses = tuple(dict.fromkeys((self.address, *self.hello.addresses)))[:64]
        return Neighbour(id=self.key, name=self.name, addresses=addresses, bulk_port=self.hello.bulk_port)

    @property
    def memory(self) -> int:
        """Bytes its stages may take on its device, all together."""
        return self._memory_of(self.device)

    def device_for(self, engine: EngineName) -> str:
        """The device that stages of an engine run on."""
        return "CPU" if engine == "llamacpp" else self.device or "CPU"

    def memory_for(self, engine: EngineName) -> int:
        """Bytes that stages of an engine may take, all together."""
        return self._memory_of(self.device_for(engine))

    def _memory_of(self, device: str | None) -> int:
        own = next((each.memory for each in self.hello.hardware.devices if each.name == device), None)
        return self.hello.condition.memory_allowed if own is None else own

    def fail(self, why: str, *, final: bool, now: float) -> Setback:
        """It cannot be planned with for now."""
        pause = min(_FIRST_PAUSE * 2 ** min(self.failures, _DOUBLINGS), _LONGEST_PAUSE)
        self.failures += 1
        self.setback = Setback(why[:_LONGEST_WHY], inf if final else pause, now)
        return self.setback

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        setback, fastest = self.setback, min(self.costs, key=lambda costs: costs.layer[0], default=None)
        return {
            "name": self.name,
            "key": self.key,
            "address": self.address,
            "addresses": self.hello.addresses,
            "since": self.since,
            "versions": self.hello.versions.model_dump(),
            "hardware": self.hello.hardware.model_dump(),
            "condition": self.condition.model_dump(),
            "device": self.device,
            "engines": {costs.engine: _milliseconds(costs) for costs in self.costs},
            "milliseconds": fastest and _milliseconds(fastest),
            "links": {peer: link.model_dump(exclude={"peer"}) for peer, link in self.links.items()},
            "work": self.work and asdict(self.work),
            "problem": setback and setback.told(monotonic()),
        }


def _milliseconds(costs: CostProfile) -> dict[str, Any]:
    return {"rows": costs.rows, "layer": costs.layer, "head": costs.head}
