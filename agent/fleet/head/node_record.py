"""What the head knows of a node."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from time import time
from typing import Any, Self

from agent.fleet.control.messages import Condition, Hello, LinkMeasure, Neighbour
from shards.profile import CostProfile

_LONGEST_WORK = 200
"""Characters of what a node says that it does."""


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
    """The one its stages run on; None while that is not chosen."""
    costs: CostProfile | None = None
    asked_at: float | None = None
    """Since when it is measuring, on the monotonic clock."""
    links: dict[str, LinkMeasure] = field(default_factory=dict)
    """By the other node's key; replaced as a whole."""
    unreachable: set[str] = field(default_factory=set)
    """Keys of nodes it found no way to."""
    work: Work | None = None
    """What it is doing beside serving: fetching, measuring, compiling a stage."""
    problem: str | None = None
    """Why it cannot be planned with."""

    @property
    def neighbour(self) -> Neighbour:
        """How others reach it."""
        # the address it came from is one that works, whatever it says of itself
        addresses = tuple(dict.fromkeys((self.address, *self.hello.addresses)))[:64]
        return Neighbour(id=self.key, name=self.name, addresses=addresses, bulk_port=self.hello.bulk_port)

    @property
    def memory(self) -> int:
        """Bytes its stages may take on their device, all together."""
        own = next((device.memory for device in self.hello.hardware.devices if device.name == self.device), None)
        return self.hello.condition.memory_allowed if own is None else own

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        costs = self.costs
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
            "milliseconds": costs and {"rows": costs.rows, "layer": costs.layer, "head": costs.head},
            "links": {peer: link.model_dump(exclude={"peer"}) for peer, link in self.links.items()},
            "work": self.work and asdict(self.work),
            "problem": self.problem,
        }
