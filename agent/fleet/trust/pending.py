"""The nodes that knock at the head's door with keys it does not know, until a person lets them in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agent.fleet.trust.allowance import Allowance
from agent.fleet.trust.identity import clean_name
from agent.fleet.trust.members import Member, Members, code_of, same_code
from shards.errors import RequestError

MOST_WAITING = 32
MOST_AT_ADDRESS = 4
EXPIRY_SECONDS = 600.0
"""A node that has not knocked for so long is no longer listed."""

MOST_REFUSED = 64
"""Of more nodes that were refused, the earliest are listed again if they still knock."""

IDLE_SECONDS = 30.0
"""A node that has not knocked for so long gives its place to a newcomer; one that waits knocks every second or so."""

_LOG_LINES = 32
_LOG_LINES_PER_SECOND = 1 / 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node that waits."""

    key: str
    code: str
    name: str | None
    """What it announces to be called; only its code tells who it is."""
    address: str
    waiting_seconds: float
    """Since it knocked first."""
    idle_seconds: float
    """Since it knocked last."""
    is_forgotten: bool
    """It was a member once and was shut out."""


@dataclass(slots=True)
class _Knocks:
    code: str
    address: str
    first: float
    last: float


class Pending:
    """Who waits; for any thread.

    Whoever can reach the head can make keys and knock with them as fast as he likes. So there are few places, fewer
    for one address, and a newcomer gets a place that is free or whose node has stopped knocking, never that of one
    that goes on. Who gets no place may knock again, or join with a token.

    Args:
        members: Who need not wait.
        clock: Seconds that never go back.
    """

    def __init__(self, members: Members, clock: Callable[[], float] = time.monotonic) -> None:
        self._members, self._clock = members, clock
        self._lock = threading.Lock()
        self._knocks: dict[str, _Knocks] = {}
        self._refused: dict[str, _Knocks] = {}
        """Not listed any more, and in nobody's way; the latest last."""
        self._names: Mapping[str, str] = {}
        self._log_lines = Allowance(_LOG_LINES, _LOG_LINES_PER_SECOND, clock())

    def check(self, key: str, address: str) -> bool:
        """For a doorman: members come in, others wait."""
        if self._members.is_member(key):
            return True
        self.knock(key, address)
        return False

    def name(self, names: Mapping[str, str]) -> None:
        """Hear what nodes announce to be called, by key; in place of what was heard before."""
        self._names = names

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Who waits, longest first."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            return tuple(
                self._described(key, knocks, now)
                for key, knocks in sorted(self._knocks.items(), key=lambda item: item[1].first)
            )

    def describe(self) -> list[dict[str, Any]]:
        """Who waits, as JSON data."""
        return [asdict(node) for node in self.waiting]

    def find(self, code: str) -> Waiting:
        """The node with this code, of those that wait and those that were refused.

        Raises:
            RequestError: none has it, or several have.
        """
        waiting = self.waiting
        with self._lock:
            refused = [self._described(key, knocks, self._clock()) for key, knocks in self._refused.items()]
        found = [node for node in (*waiting, *refused) if same_code(code, node.code)]
        if len(found) != 1:
            listed = ", ".join(f"{node.code} ({node.name or 'a PC'} at {node.address})" for node in found or waiting)
            raise RequestError(
                f"several nodes that wait have the code {code!r}" if found else f"no node waits with code {code!r}",
                where="code",
                hint=f"Waiting: {listed}." if listed else "Nobody waits: run edge-agent join on the other PC.",
            )
        return found[0]

    def approve(self, code: str) -> Member:
        """Make a member of the node with this code; when it knocks again it is let in.

        Raises:
            RequestError: none that waits has it, several have, or the fleet is full.
            ConfigurationError: the members cannot be stored.
        """
        node = self.find(code)
        member = self._members.add(node.key, node.name or "pc")
        with self._lock:
            self._refused.pop(node.key, None)
        return member

    def refuse(self, code: str) -> Waiting:
        """Do not list the node with this code any more, however often it knocks. It can still be approved.

        This is remembered for as long as this program runs.

        Raises:
            RequestError: none has it, or several have.
        """
        node = self.find(code)
        with self._lock:
            if self._members.is_member(node.key):
                hint = "edge-agent forget shuts it out."
                raise RequestError(f"{node.name or node.code} has just been let in", where="code", hint=hint)
            if knocks := self._knocks.pop(node.key, None):
                self._refused[node.key] = knocks
            if len(self._refused) > MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
        return node

    def knock(self, key: str, address: str) -> None:
        """Note that a node which is no member wants to come in."""
        with self._lock:
            now = self._clock()
            if knocks := self._knocks.get(key) or self._refused.get(key):
                knocks.address, knocks.last = address, now
            elif self._has_room(address, now):
                code = code_of(self._members.fleet, key)
                self._knocks[key] = _Knocks(code, address, first=now, last=now)
                if self._log_lines.take(self._clock()):
                    _log.warning("an unknown node at %s waits; to let it in: edge-agent approve %s", address, code)

    def _described(self, key: str, knocks: _Knocks, now: float) -> Waiting:
        return Waiting(
            key=key,
            code=knocks.code,
            name=self._name_of(key),
            address=knocks.address,
            waiting_seconds=now - knocks.first,
            idle_seconds=now - knocks.last,
            is_forgotten=self._members.is_forgotten(key),
        )

    def _name_of(self, key: str) -> str | None:
        announced = self._names.get(key)
        return clean_name(announced) if announced else None

    def _has_room(self, address: str, now: float) -> bool:
        """Whether a newcomer gets a place, which is made for it if that is fair."""
        self._expire(now)
        rivals = [key for key, knocks in self._knocks.items() if knocks.address == address]
        if len(rivals) < MOST_AT_ADDRESS:
            if len(self._knocks) < MOST_WAITING:
                return True
            rivals = list(self._knocks)
        idlest = min(rivals, key=lambda key: self._knocks[key].last)
        if now - self._knocks[idlest].last < IDLE_SECONDS:
            return False
        del self._knocks[idlest]
        return True

    def _expire(self, now: float) -> None:
        for key, knocks in list(self._knocks.items()):
            if now - knocks.last >= EXPIRY_SECONDS or self._members.is_member(key):
                del self._knocks[key]
        for key in [key for key in self._refused if self._members.is_member(key)]:
            del self._refused[key]
