"""Which announced agents count as there: pure bookkeeping, without network, clock or threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from agent.fleet.discovery.announcement import Announcement
from shards.errors import WireError

_log = logging.getLogger(__name__)

_MOST = 256
"""Names kept; more than that is no home."""

_FRESH = 0.8
"""Part of a record's life after which it is asked for again (RFC 6762, section 5.2)."""

_LATE_SECONDS = 3.0
"""How long after a goodbye something that was said before may still arrive: answers wait up to a second and a half, so
that one goes out for several questions, and the responder of a program that ends may send them after its goodbye."""

_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
"""Seconds between two questions. Each wait is twice the one before it, until nothing is missing; then the longest."""


@dataclass(frozen=True, slots=True)
class Record:
    """A TXT record in the cache, times in seconds of the monotonic clock."""

    text: bytes
    received: float
    expires: float


@dataclass(slots=True)
class _Sighting:
    record: Record | None = None
    announcement: Announcement | None = None
    doubted: float | None = None
    """Since when it has to answer to count again."""
    is_noted: bool = False

    def is_missed(self, now: float) -> bool:
        """Whether it should be heard again."""
        if self.record is None or self.announcement is None:
            return False
        life = self.record.expires - self.record.received
        return self.doubted is not None or now >= self.record.received + _FRESH * life


class Sightings:
    """Agents by the name of their announcement, which is another one for every start of an agent.

    An agent that was killed leaves an announcement behind until that expires. So when a second one of the same key
    appears, the first is doubted: it counts again when it has answered, as that of a cloned identity would.
    """

    def __init__(self) -> None:
        self._sightings: dict[str, _Sighting] = {}
        self._gone: dict[str, float] = {}
        """Names that have said goodbye, and until when that holds against what comes late."""
        self._asked = -inf
        self._wait = 0.0

    def add(self, name: str) -> None:
        """An announcement of that name exists."""
        if name in self._sightings or name in self._gone:
            return
        if len(self._sightings) >= _MOST:
            empty = next((old for old, sighting in self._sightings.items() if sighting.announcement is None), None)
            if empty is None:
                return
            del self._sightings[empty]
        self._sightings[name] = _Sighting()

    def remove(self, name: str) -> None:
        """It has not been heard of for long."""
        self._sightings.pop(name, None)

    def goodbye(self, name: str) -> None:
        """It says that it is gone."""
        if self._sightings.pop(name, None) is not None:
            self._gone[name] = inf  # until the next update, which knows the time

    def update(self, now: float, read: Callable[[str], Record | None]) -> bool:
        """Take in what the cache has now.

        Args:
            now: Seconds of the monotonic clock.
            read: Gives the latest record of a name.

        Returns:
            Whether it is time to ask who is there.
        """
        self._gone = {name: min(until, now + _LATE_SECONDS) for name, until in self._gone.items() if until > now}
        for name, sighting in self._sightings.items():
            record = read(name)
            if record is not None and record.expires <= now:
                record = None
            self._take_in(name, sighting, record, now)
        if not any(sighting.is_missed(now) for sighting in self._sightings.values()):
            self._wait = 0.0
            return self._may_ask(now, _LONGEST_WAIT)
        if not self._may_ask(now, self._wait):
            return False
        self._wait = min(max(_FIRST_WAIT, 2 * self._wait), _LONGEST_WAIT)
        return True

    @property
    def visible(self) -> tuple[Announcement, ...]:
        """What counts, in the order of appearance."""
        return tuple(
            sighting.announcement
            for sighting in self._sightings.values()
            if sighting.announcement is not None and sighting.doubted is None
        )

    def _may_ask(self, now: float, pause: float) -> bool:
        if now < self._asked + pause:
            return False
        self._asked = now
        return True

    def _take_in(self, name: str, sighting: _Sighting, record: Record | None, now: float) -> None:
        before, had = sighting.announcement, sighting.record
        sighting.record = record
        if record is None:
            sighting.announcement = sighting.doubted = None
            return
        if had is None or record.text != had.text:
            sighting.announcement = self._parse(name, sighting, record.text)
        if sighting.doubted is not None and record.received > sighting.doubted:
            sighting.doubted = None
        announcement = sighting.announcement
        if announcement is not None and (before is None or before.key != announcement.key):
            for other in self._sightings.values():
                same = other.announcement is not None and other.announcement.key == announcement.key
                if same and other is not sighting:
                    other.doubted, self._wait = now, 0.0

    def _parse(self, name: str, sighting: _Sighting, text: bytes) -> Announcement | None:
        try:
            return Announcement.from_text(text)
        except WireError as error:
            if not sighting.is_noted:
                _log.debug("%r is ignored: %s", name, error)
                sighting.is_noted = True
            return None
