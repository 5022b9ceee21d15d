"""Agents find each other on the local network: multicast DNS (RFC 6762) and DNS-SD (RFC 6763)."""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import time
from collections.abc import Callable
from threading import Thread
from typing import Literal

import zeroconf
from zeroconf import DNSOutgoing, DNSPointer, DNSQuestion, DNSText  # type: ignore[attr-defined]  # not in __all__

from agent.fleet.discovery.announcement import SERVICE, Announcement
from agent.fleet.discovery.interfaces import own_addresses
from agent.fleet.discovery.sightings import Record, Sightings

__all__ = ["Announcement", "Discovery"]

_log = logging.getLogger(__name__)

_LIFE_SECONDS = 30
"""How long others believe a record without hearing it again, so how long one who was killed is still listed."""

_ROUND_SECONDS = 1.0
_LOOK_SECONDS = 3.0
"""Between two looks at this PC's interfaces."""

_BURST_SECONDS = 0.05
"""News that come together are taken in together."""

_QUERY, _POINTER, _TEXT, _INTERNET = 0, 12, 16, 1
"""Flags of a question, types of records, a class: RFC 1035, sections 4.1.1, 3.2.2 and 3.2.4."""

_LABEL_BYTES = 40
"""Of a name; a label of DNS has room for 63."""

_State = Literal["there", "gone", "silent"]
_News = tuple[str, _State] | None
"""A name that is there, has said goodbye, or has not been heard of for long; None: something else is new."""


class Discovery:
    """Announces this agent, and keeps a list of the others. A context manager.

    Everything is done on a thread of its own, `changed` too. Where multicast does not work it goes on trying.

    Args:
        announce: This agent; its addresses are this PC's, whatever they become. None: only listen.
        changed: Called with `others` whenever they have changed. It must not wait, nor close this.
        addresses: Gives this PC's addresses.
    """

    def __init__(
        self,
        announce: Announcement | None,
        changed: Callable[[tuple[Announcement, ...]], None],
        *,
        addresses: Callable[[], tuple[str, ...]] = own_addresses,
    ) -> None:
        self.others: tuple[Announcement, ...] = ()
        """The agents seen now, without this one. Two with one key are two agents with one identity."""
        self.problem: str | None = None
        """Why nothing can be sent or heard."""
        self._announcement = announce
        self._changed = changed
        self._own_addresses = addresses
        self._addresses: tuple[str, ...] = ()
        self._next_look = self._restless_until = 0.0
        self._wall_clock = time.time()
        self._sightings = Sightings()
        self._responder: _Responder | None = None
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._is_closing = False
        self._thread = Thread(target=self._run, name="discovery", daemon=True)
        self._thread.start()

    def update(self, announcement: Announcement) -> None:
        """From now on, announce this of the agent."""
        self._announcement = announcement
        self._news.put(None)

    def close(self) -> None:
        """Say goodbye, and end."""
        self._is_closing = True
        self._news.put(None)
        self._thread.join()

    def __enter__(self) -> Discovery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On its own thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    if self._has_slept():
                        self._start_again()
                    self._do_round()
                    self.problem = None
                except (OSError, zeroconf.Error) as error:
                    if self.problem is None:
                        _log.warning("other PCs cannot be found now: %s", error)
                    self.problem = str(error) or type(error).__name__
                    self._start_again()
                others = self._sightings.visible
                if others != self.others:
                    self.others = others
                    self._changed(others)
                self._wait()
        finally:
            self._start_again()

    def _has_slept(self) -> bool:
        """Whether this PC, or this program, stood still for so long that others believe it gone."""
        before, self._wall_clock = self._wall_clock, time.time()
        return self._wall_clock - before > _LIFE_SECONDS

    def _do_round(self) -> None:
        now = zeroconf.current_time_millis() / 1000
        if self._responder is None:
            self._responder = _Responder(self._news, self._announcement.name if self._announcement else "listener")
            self._next_look, self._restless_until = now, now + 3 * _LOOK_SECONDS
        if is_look := now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            addresses = self._own_addresses()
            if addresses != self._addresses:
                self._addresses = addresses
                # an IPv6 address is there seconds before it may be used, while others are asked whether it is theirs
                self._restless_until = now + 3 * _LOOK_SECONDS
        if self._announcement is not None and self._addresses:
            self._responder.announce(self._announcement.model_copy(update={"addresses": self._addresses}))
        if is_look and now < self._restless_until:
            self._responder.rescan()
        if self._sightings.update(now, self._responder.read):
            self._responder.ask()

    def _start_again(self) -> None:
        """With nothing, at the next round."""
        self._sightings = Sightings()
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.close()

    def _wait(self) -> None:
        """Until the next round, or until something is new, and take that in."""
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=_ROUND_SECONDS)
            if not self._is_closing:
                time.sleep(_BURST_SECONDS)
            while True:
                match news:
                    case name, "there":
                        self._sightings.add(name)
                    case name, "gone":
                        self._sightings.goodbye(name)
                    case name, "silent":
                        self._sightings.remove(name)
                news = self._news.get_nowait()


class _Responder:
    """The multicast sockets, and what is said and heard on them.

    Args:
        news: Gets the names that are heard, on another thread.
        label: For people who look at what is announced.

    Raises:
        OSError: there is no network, or the port of multicast DNS cannot be shared.
    """

    def __init__(self, news: queue.SimpleQueue[_News], label: str) -> None:
        self._token = secrets.token_hex(4)
        # nobody else has this name, so others need not be asked before; a dot would make two labels of one
        self._name = (
            f"{label.replace('.', '-').encode()[:_LABEL_BYTES].decode(errors='ignore')}-{self._token}.{SERVICE}"
        )
        self._announced: Announcement | None = None
        self._count = 0
        # it logs each interface that comes or goes as a fault of its own, with a trace
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
        self._zeroconf = _open()
        # Its ServiceBrowser is not used: names from the network that cannot be written again stop that one's queries
        self._zeroconf.add_listener(_Listener(news, self._name), None)

    def announce(self, announcement: Announcement) -> None:
        """Tell everybody, if it is new.

        Raises:
            zeroconf.Error: the sockets have come to an end.
        """
        if announcement == self._announced:
            return
        self._count += 1
        service = zeroconf.ServiceInfo(
            SERVICE,
            self._name,
            port=announcement.control or announcement.bulk or 0,
            properties=announcement.to_text(self._count),
            server=f"edge-agent-{self._token}.local.",
            parsed_addresses=list(announcement.addresses),
            host_ttl=_LIFE_SECONDS,
            other_ttl=_LIFE_SECONDS,
        )
        if self._announced is None:
            self._zeroconf.register_service(service, cooperating_responders=True)
        else:
            self._zeroconf.update_service(service)
        self._announced = announcement

    def rescan(self) -> None:
        """Use the interfaces there are now, and ask on them who is there."""
        self._zeroconf.update_interfaces()
        self.ask()

    def read(self, name: str) -> Record | None:
        """What a name's last announcement says."""
        record = self._zeroconf.cache.get_by_details(name, _TEXT, _INTERNET)
        if not isinstance(record, DNSText):
            return None
        received = record.created / 1000
        return Record(record.text, received, received + record.ttl)

    def ask(self) -> None:
        """Ask everybody who is there. Asked to answer by multicast, all who listen hear it.

        By unicast an answer would reach only one of the programs that share the port.
        """
        query = DNSOutgoing(_QUERY)
        query.add_question(DNSQuestion(SERVICE, _POINTER, _INTERNET))
        self._zeroconf.send(query)

    def close(self) -> None:
        """Say goodbye, and end all threads."""
        with contextlib.suppress(OSError, zeroconf.Error):
            self._zeroconf.close()


class _Listener(zeroconf.RecordUpdateListener):
    """Hears what the cache takes in, except of this agent; on zeroconf's thread."""

    def __init__(self, news: queue.SimpleQueue[_News], own: str) -> None:
        self._news, self._own = news, own
        self._heard: list[_News] = []

    def async_update_records(self, zc: zeroconf.Zeroconf, now: float, records: list[zeroconf.RecordUpdate]) -> None:
        """Records have come or expired; the cache does not have them yet."""
        for record in (update.new for update in records):
            if isinstance(record, DNSPointer) and record.name == SERVICE and record.alias != self._own:
                state: _State = "there" if not record.is_expired(now) else "silent" if record.ttl else "gone"
                self._heard.append((record.alias, state))
            elif isinstance(record, DNSText) and record.name.endswith(SERVICE):
                self._heard.append(None)

    def async_update_records_complete(self) -> None:
        """Now it has."""
        for news in self._heard:
            self._news.put(news)
        self._heard = []


def _open() -> zeroconf.Zeroconf:
    try:
        return zeroconf.Zeroconf(ip_version=zeroconf.IPVersion.All)
    except (OSError, RuntimeError):  # no IPv6
        pass
    try:
        return zeroconf.Zeroconf(ip_version=zeroconf.IPVersion.V4Only)
    except RuntimeError as error:
        raise OSError(str(error)) from None
