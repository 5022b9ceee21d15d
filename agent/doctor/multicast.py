"""Whether mDNS works, by which PCs find each other: a question to all on each network comes back to who asks."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass

from agent.doctor.check import Check
from agent.doctor.interfaces import Interface, interfaces

_TOPIC = "multicast"
_GROUP, _PORT = "224.0.0.251", 5353
_SECONDS = 2.0
_QUESTION = b"\0\0\0\1\0\0\0\0\0\0\x09_services\x07_dns-sd\x04_udp\x05local\0\0\x0c\0\1"
"""What services are there? (RFC 6763, section 9.) Without the two bytes of its number, which others ignore."""
_STEP = "Let UDP port 5353 through this PC's firewall, or join with --head HOST:PORT, which needs no multicast."


@dataclass(frozen=True, slots=True)
class Echoes:
    """What was heard after a question on each interface."""

    interfaces: tuple[Interface, ...]
    returned: frozenset[str] = frozenset()
    """Names of the interfaces on which the question came back."""
    others: frozenset[str] = frozenset()
    """Addresses of other PCs that spoke."""
    error: str | None = None
    """Why nothing could be asked."""


def check() -> list[Check]:
    """Ask on this PC's networks, and listen."""
    return [judge(_ask(interfaces()))]


def judge(echoes: Echoes) -> Check:
    """Whether other PCs can be found."""
    if not echoes.interfaces:
        return Check(_TOPIC, "fault", "this PC is on no network", "Connect it to the network of the other PCs.")
    if echoes.error is not None:
        return Check(_TOPIC, "fault", f"UDP port {_PORT} cannot be used ({echoes.error})", _STEP)
    if not echoes.returned:
        names = ", ".join(interface.name for interface in echoes.interfaces)
        return Check(_TOPIC, "fault", f"an mDNS question did not come back on {names}: PCs will not be found", _STEP)
    silent = [interface.name for interface in echoes.interfaces if interface.name not in echoes.returned]
    where = ", ".join(sorted(echoes.returned)) + (f" (but not on {', '.join(silent)})" if silent else "")
    if echoes.others:
        return Check(_TOPIC, "ok", f"works on {where}; {len(echoes.others)} other devices were heard")
    return Check(
        _TOPIC,
        "ok",
        f"leaves this PC on {where}; no other device was heard, which may be because there is none",
        "If PCs don't find each other: look for 'AP isolation' or 'guest network' in the router's Wi-Fi settings,"
        " or join with --head HOST:PORT.",
    )


def _ask(on: tuple[Interface, ...]) -> Echoes:
    asked: dict[bytes, str] = {}
    returned, others = set(), set()
    own = {interface.address for interface in on}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            udp.bind(("", _PORT))
        except OSError as error:
            return Echoes(on, error=error.strerror or str(error))
        for interface in on:
            number, address = secrets.token_bytes(2), socket.inet_aton(interface.address)
            try:
                udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_GROUP) + address)
                udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
                udp.sendto(number + _QUESTION, (_GROUP, _PORT))
            except OSError:
                continue  # nothing comes back there
            asked[number] = interface.name
        end = time.monotonic() + _SECONDS
        while (left := end - time.monotonic()) > 0:
            udp.settimeout(left)
            try:
                data, (sender, _) = udp.recvfrom(9000)
            except OSError:
                continue  # the time is over, or Windows reports an earlier packet's fate
            if data[2:] == _QUESTION and data[:2] in asked:
                returned.add(asked[data[:2]])
            elif sender not in own:
                others.add(sender)
    return Echoes(on, frozenset(returned), frozenset(others))
