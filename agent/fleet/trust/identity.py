"""Who this PC is, the fleet it may be the head of, and the fleets it has joined: kept in its user's own files."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import zmq
from pydantic import AfterValidator

from agent.fleet.control.messages import Key, Name
from agent.fleet.trust import stored
from agent.fleet.trust.stored import Stored
from pipeline.link import KeyPair

_NODE = "node.json"
_FLEET = "fleet.json"
_JOINED = "joined.json"
LONGEST_NAME = 63
"""Bytes: what DNS takes as a name."""
_MOST_JOINED = 16


def _belong_together(keys: KeyPair) -> KeyPair:
    try:
        public = zmq.curve_public(keys.secret.encode())
    except (zmq.ZMQError, ValueError):
        raise ValueError("this is no key") from None
    if public.decode() != keys.public:
        raise ValueError("the public key is not that of the secret key")
    return keys


CheckedKeys = Annotated[KeyPair, AfterValidator(_belong_together)]


class NodeIdentity(Stored):
    """This PC as a node. Its public key is its identity, whatever it is called."""

    name: Name
    keys: CheckedKeys

    @classmethod
    def load_or_create(cls, folder: Path) -> NodeIdentity:
        """This user's node; made on first use.

        Raises:
            ConfigurationError: the file cannot be read or written, is damaged, or others can read it.
        """
        return stored.read_or_create(folder / _NODE, cls, lambda: cls(name=default_name(), keys=KeyPair.new()))

    def renamed(self, name: str, folder: Path) -> NodeIdentity:
        """The same node under a name that is kept.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        renamed = self.model_copy(update={"name": name})
        if renamed != self:
            stored.write(folder / _NODE, renamed)
        return renamed


class FleetIdentity(Stored):
    """The fleet whose head this PC is.

    Who holds the secret of `joining` may become a member by himself; it is what a token carries.
    """

    name: Name
    keys: CheckedKeys
    joining: CheckedKeys

    @classmethod
    def load_or_create(cls, folder: Path) -> FleetIdentity:
        """This user's fleet; made on first use.

        Raises:
            ConfigurationError: the file cannot be read or written, is damaged, or others can read it.
        """
        return stored.read_or_create(
            folder / _FLEET, cls, lambda: cls(name=default_name(), keys=KeyPair.new(), joining=KeyPair.new())
        )

    def renew_token(self, folder: Path) -> FleetIdentity:
        """The same fleet with another joining key, stored; members stay, older tokens are worth nothing.

        A door that is open has to be told.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        renewed = self.model_copy(update={"joining": KeyPair.new()})
        stored.write(folder / _FLEET, renewed)
        return renewed


class JoinedFleet(Stored):
    """A fleet this PC is, or was, a member of."""

    fleet: Key
    name: Name
    address: str


class _Joined(Stored):
    fleets: tuple[JoinedFleet, ...] = ()


class JoinedFleets:
    """The fleets this PC has joined, by which it finds its own again.

    Raises:
        ConfigurationError: the file cannot be read, is damaged, or others can read it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _JOINED
        self.fleets = (stored.read(self._path, _Joined) or _Joined()).fleets
        """Newest first."""

    def remember(self, fleet: str, name: str, address: str) -> None:
        """Put a fleet first, where it was reached last.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        newest = JoinedFleet(fleet=fleet, name=name, address=address)
        self._store((newest, *self._others(fleet))[:_MOST_JOINED])

    def forget(self, fleet: str) -> None:
        """Drop a fleet.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._store(self._others(fleet))

    def _others(self, fleet: str) -> tuple[JoinedFleet, ...]:
        return tuple(joined for joined in self.fleets if joined.fleet != fleet)

    def _store(self, fleets: tuple[JoinedFleet, ...]) -> None:
        if fleets != self.fleets:
            stored.write(self._path, _Joined(fleets=fleets))
            self.fleets = fleets


def default_name() -> str:
    """What this PC is called unless its user says otherwise: its host name without the domain."""
    return clean_name(socket.gethostname().partition(".")[0])


def clean_name(text: str) -> str:
    """A name that is safe to print, to type and to announce: letters and digits of any script, `-`, `_` and `.`.

    Everything else becomes `-`; it ends after 63 bytes of UTF-8, and is `pc` if nothing is left.
    """
    kept = "".join(character if character.isalnum() or character in "-_." else "-" for character in text)
    short = kept.strip("-.").encode("utf-8", "ignore")[:LONGEST_NAME].decode("utf-8", "ignore")
    return short.rstrip("-.") or "pc"
