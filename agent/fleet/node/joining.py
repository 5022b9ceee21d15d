"""How a PC finds the fleet it belongs to, and enters it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from agent import paths
from agent.address import DEFAULT_CONTROL_PORT, DEFAULT_PORT, control_address
from agent.fleet.bulk.library import Library
from agent.fleet.control.messages import Key
from agent.fleet.discovery.discovery import Announcement, Discovery
from agent.fleet.node.hardware import choose_device
from agent.fleet.node.node import Node, look_up_hardware
from agent.fleet.node.node_settings import AUTO, NodeSettings
from agent.fleet.node.node_status import NodeStatus
from agent.fleet.trust.door import join_with_token
from agent.fleet.trust.identity import JoinedFleet, JoinedFleets, NodeIdentity, clean_name
from agent.fleet.trust.token import Token
from shards.errors import ConfigurationError, EdgeAgentError

_POLL_SECONDS = 0.1
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""

_OTHERS_SECONDS = 1.0
"""How long further heads may take to show themselves after the first."""

_PATIENCE_SECONDS = 3.0
"""Without any head: after which the fleet is looked for where it was last."""

_NO_HEAD = (
    "Start one with edge-agent serve PACKAGE on a PC of this network. If one runs, multicast (UDP port 5353) does not "
    "pass: give its address with --head HOST:PORT."
)

_log = logging.getLogger(__name__)


class JoinOptions(BaseModel):
    """Which fleet, as far as the user says. Nothing is said: the one this PC is in, or the only one there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: Token | None = Field(None, repr=False)
    fleet: str | None = Field(None, description="its name")
    fleet_key: Key | None = Field(None, description="its public key")
    head: str | None = Field(None, description="HOST or HOST:PORT, where no announcements pass")


@dataclass(frozen=True, slots=True)
class Place:
    """A fleet, and where its head is."""

    fleet: str
    addresses: tuple[str, ...]
    """IP addresses, or a name."""
    control: int
    door: int

    @classmethod
    def at(cls, fleet: str, address: str) -> Place:
        """The place of a head at `HOST` or `HOST:PORT`; raises ConfigurationError if that is neither."""
        host, port = _joining_address(address)
        return cls(fleet, (host,), port, port + 1)

    @classmethod
    def announced(cls, head: Announcement) -> Place:
        """Where a head says it is."""
        control = head.control or DEFAULT_CONTROL_PORT
        return cls(head.fleet, head.addresses, control, head.door or control + 1)


def choose(
    options: JoinOptions, joined: Sequence[JoinedFleet], heads: Sequence[Announcement], *, all_seen: bool
) -> Place | None:
    """Decide where to go; None: nowhere yet.

    A PC that has joined a fleet stays with it until it is told to join another. Announcements say where a fleet is,
    never which one is to be trusted: the head proves that it has the fleet's key, and until a person or a token has let
    this PC in, it is in none.

    Args:
        options: What the user says.
        joined: The fleets this PC has joined, newest first.
        heads: That announce themselves now.
        all_seen: Whether others had time enough to do so.

    Raises:
        ConfigurationError: there are several fleets to choose from, or what the user says does not say which.
    """
    fleet = _fleet(options, joined, heads, all_seen)
    if fleet is None:
        return None
    if options.head is not None:
        return Place.at(fleet, options.head)
    for head in heads:
        if head.fleet == fleet:
            return Place.announced(head)
    known = next((known for known in joined if known.fleet == fleet), None)
    return Place.at(fleet, known.address) if known and all_seen else None


def _fleet(
    options: JoinOptions, joined: Sequence[JoinedFleet], heads: Sequence[Announcement], all_seen: bool
) -> str | None:
    """The public key of the wanted fleet."""
    given = {key for key in (options.token and options.token.fleet, options.fleet_key) if key}
    if len(given) > 1:
        raise ConfigurationError("the token is of another fleet", where="--fleet-key", hint="Leave one of them out.")
    if given:
        return given.pop()
    if options.head is not None and options.fleet is None:
        return _fleet_at(options.head, joined, heads, all_seen)
    called = [known.fleet for known in joined if options.fleet in (None, known.name)]
    seen = {head.fleet: head for head in heads if options.fleet in (None, head.name)}
    if options.fleet is None and called:
        return next((fleet for fleet in called if fleet in seen), called[0] if all_seen else None)
    found = list(dict.fromkeys((*called, *seen)))
    if len(found) == 1 and (all_seen or called):
        return found[0]
    if len(found) > 1 and all_seen:
        raise _several(options, seen.values(), found)
    if options.head is not None and all_seen:
        raise _unknown()
    return None


def _fleet_at(address: str, joined: Sequence[JoinedFleet], heads: Sequence[Announcement], all_seen: bool) -> str | None:
    """The fleet whose head is at an address that the user gives."""
    at = _joining_address(address)
    for known in joined:
        if _joining_address(known.address) == at:
            return known.fleet
    for head in heads:
        if at[0] in head.addresses and at[1] == head.control:
            return head.fleet
    if not all_seen:
        return None
    if len(joined) == 1:
        return joined[0].fleet
    raise _unknown()


def _unknown() -> ConfigurationError:
    return ConfigurationError(
        "which fleet is there is not known, so its head could not be told from an impostor",
        where="--head",
        hint="Give its token (edge-agent token, on the head's PC) with --token, or its key with --fleet-key.",
    )


def _several(options: JoinOptions, seen: Iterable[Announcement], found: Sequence[str]) -> ConfigurationError:
    if options.fleet is None:
        heads = list(seen)
        names = ", ".join(f"{head.name} ({head.addresses[0]}:{head.control})" for head in heads)
        are_alike = len({head.name for head in heads}) < len(heads)
        hint = "Choose one with " + ("--head HOST:PORT; serve shows its own." if are_alike else "--fleet NAME.")
        return ConfigurationError(f"there are {len(found)} fleets here: {names}", where="network", hint=hint)
    return ConfigurationError(
        f"{len(found)} fleets are called {options.fleet!r}, with the keys {'  '.join(found)}",
        where="--fleet",
        hint="Choose one with --fleet-key KEY, in quotes; edge-agent status on a head's PC shows that of its own.",
    )


def _joining_address(text: str) -> tuple[str, int]:
    """Where a user says that the head is; raises ConfigurationError if no PC can join there."""
    host, port = control_address(text)
    if port == DEFAULT_PORT:
        raise ConfigurationError(
            f"{port} is the port of the HTTP API, where no PC joins",
            where="--head",
            hint=f"Leave the port out; it is {DEFAULT_CONTROL_PORT} unless the head says otherwise.",
        )
    return host, port


class Joining:
    """This PC on its way into a fleet, and in it. A context manager.

    Args:
        options: Which fleet.
        settings: What the PC gives.
        config: Folder of its keys; None: the user's own.
        cache: Folder for weights and what is measured; None: the user's own.

    Raises:
        ConfigurationError: a file in the settings folder cannot be used.
    """

    def __init__(
        self,
        options: JoinOptions,
        settings: NodeSettings,
        *,
        config: Path | None = None,
        cache: Path | None = None,
    ) -> None:
        config, cache = config or paths.config_folder(), cache or paths.cache_folder()
        identity = NodeIdentity.load_or_create(config)
        name = clean_name(settings.name or identity.name)
        self._options, self._settings = options, settings.model_copy(update={"name": name})
        self._identity = identity.renamed(name, config)
        self._joined = JoinedFleets(config)
        self._library, self._tuning = Library(cache / "fleet"), cache / "tuning"
        self._status = self._shown = NodeStatus(name=name)
        self._hardware = look_up_hardware()
        self._place: Place | None = None
        self._node: Node | None = None
        self._news: SimpleQueue[NodeStatus] = SimpleQueue()
        self._announcement = Announcement(key=identity.keys.public, role="node", name=name)
        self._discovery = Discovery(self._announcement, self._seen)

    def run(self, show: Callable[[NodeStatus], None]) -> None:
        """Enter the fleet, and take part in it until its head refuses that.

        Args:
            show: Called with the status whenever it has changed, on this thread; may take its time.

        Raises:
            ConfigurationError: the PC has not the device or engine to give, the head refuses, the token is not valid,
                or it is not clear which fleet is meant.
        """
        if self._settings.device != AUTO and "openvino" in self._settings.engines():
            choose_device(self._hardware.result(), self._settings.device)  # no head need be there to say that it is not
        place = self._find(show)
        if self._options.token is not None:
            entry = join_with_token(place.addresses, place.door, self._options.token, self._identity)
            place = replace(place, control=entry.control_port)
        self._place = place
        self._node = Node(
            self._settings,
            self._identity,
            place.fleet,
            place.addresses,
            place.control,
            self._library,
            observe=self._take_part,
            found=self._hardware,
            cache=self._tuning,
        )
        self._announce(bulk=self._node.bulk_port)
        while (status := self._pause(show)).state != "out":
            pass
        raise ConfigurationError(f"the head refuses this PC: {status.why}", where=status.head, hint=status.hint)

    def close(self) -> None:
        """Leave the fleet, and end everything."""
        if self._node is not None:
            self._node.close()
        self._discovery.close()
        wait([self._hardware], _PATIENCE_SECONDS)  # it has a process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pause(self, show: Callable[[NodeStatus], None]) -> NodeStatus:
        """Show what is new, or wait a moment for it; returns what was shown last."""
        with suppress(Empty):
            self._shown = self._news.get(timeout=_POLL_SECONDS)
            show(self._shown)
        return self._shown

    def _find(self, show: Callable[[NodeStatus], None]) -> Place:
        """Wait until the fleet is found."""
        patience, seen, is_shown = monotonic() + _PATIENCE_SECONDS, False, False
        while True:
            heads = _heads(self._discovery.others)
            if heads and not seen:
                patience, seen = min(patience, monotonic() + _OTHERS_SECONDS), True
            all_seen = monotonic() >= patience
            place = choose(self._options, self._joined.fleets, heads, all_seen=all_seen)
            if place is not None:
                return replace(place, addresses=_resolved(place.addresses))
            if not is_shown:
                show(self._status)
                is_shown = True
            if all_seen:
                self._show(self._status.model_copy(update=self._nobody(heads)))
            self._pause(show)

    def _nobody(self, heads: Sequence[Announcement]) -> dict[str, str]:
        because = f" ({self._discovery.problem})" if self._discovery.problem else ""
        whose = "no fleet announces itself" if not heads else "the fleet does not announce itself"
        return {"why": f"{whose} on this network{because}", "hint": _others(heads) or _NO_HEAD}

    def _take_part(self, status: NodeStatus) -> None:
        """Hear what the node does."""
        if status.state == "joined" and self._status.state != "joined" and self._place and status.fleet and status.head:
            try:
                self._joined.remember(self._place.fleet, status.fleet, status.head)
            except EdgeAgentError as error:
                _log.warning("the fleet will have to be found again the next time: %s", error)
            self._announce(fleet=self._place.fleet)
        if status.state == "looking" and self._place:
            others = [head for head in _heads(self._discovery.others) if head.fleet != self._place.fleet]
            status = status.model_copy(update={"hint": _others(others)})
        self._show(status)

    def _show(self, status: NodeStatus) -> None:
        if status != self._status:
            self._status = status
            self._news.put(status)

    def _announce(self, **changes: object) -> None:
        self._announcement = self._announcement.model_copy(update=changes)
        self._discovery.update(self._announcement)

    def _seen(self, others: tuple[Announcement, ...]) -> None:
        """Follow the head when its addresses change; on discovery's thread."""
        node, place = self._node, self._place
        if node is None or place is None:
            return
        for head in _heads(others):
            if head.fleet == place.fleet:
                here = Place.announced(head)
                # what the user has given may be the only way, if announcements pass a relay
                given = place.addresses if here.control == place.control else ()
                node.move(tuple(dict.fromkeys((*here.addresses, *given))), here.control)


def _heads(others: Sequence[Announcement]) -> list[Announcement]:
    return [other for other in others if other.role == "head" and other.fleet]


def _others(heads: Sequence[Announcement]) -> str | None:
    names = ", ".join(dict.fromkeys(head.name for head in heads))
    return f"There are other fleets here: {names}. To join one: edge-agent join --fleet NAME" if names else None


def _resolved(addresses: Sequence[str]) -> tuple[str, ...]:
    """IP addresses in place of names; raises ConfigurationError for a name that nobody knows."""
    found: dict[str, None] = {}
    for address in addresses:
        try:
            infos = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"this is no address or name of a PC ({reason})", where=address) from None
        found.update(dict.fromkeys(str(info[4][0]) for info in infos))
    return tuple(found)
