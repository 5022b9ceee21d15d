"""Finding the address at which another PC answers."""

from __future__ import annotations

import errno
import ipaddress
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from agent.fleet.discovery.interfaces import own_addresses
from shards.errors import StageError

_STAGGER_SECONDS = 0.1
"""Head start of an address over the next one; RFC 8305, section 8, advises at least this."""

_UNDER_WAY = {errno.EINPROGRESS, errno.EWOULDBLOCK}
_REASONS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "no answer",
    errno.EHOSTUNREACH: "no way there",
    errno.ENETUNREACH: "no way there",
}


def reach(addresses: Sequence[str], port: int, *, seconds: float = 3.0) -> str:
    """The first of a PC's addresses that accepts a TCP connection, which is closed again.

    They are tried in their order, each a moment after the one before it or when that one failed, and all go on
    until one wins ("happy eyeballs", RFC 8305).

    Args:
        addresses: IP addresses, best first; nothing is looked up in DNS.
        port: Where the other PC should be listening.
        seconds: After which it counts as unreachable.

    Returns:
        The address; an IPv6 link-local one with the scope it was reached through.

    Raises:
        StageError: none of them answered.
    """
    untried = deque(candidates(addresses))
    reasons = dict.fromkeys(untried, "no answer")
    started = next_start = time.monotonic()
    with ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        while (now := time.monotonic()) - started < seconds:
            under_way = len(selector.get_map())
            if untried and (now >= next_start or not under_way):
                address = untried.popleft()
                error = _start(address, port, selector, opened)
                if not error:
                    return address
                if error in _UNDER_WAY:
                    next_start = now + _STAGGER_SECONDS
                else:
                    reasons[address] = _reason(error)
                continue
            if not under_way:
                break
            wake = min(started + seconds, next_start) if untried else started + seconds
            for key, _ in selector.select(wake - now):
                connection, address = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not error:
                    return str(address)
                reasons[address] = _reason(error)
                selector.unregister(connection)
                connection.close()
                next_start = now
    tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items()) or "it has no address"
    raise StageError(
        f"no address of the other PC can be reached on port {port}: {tried}",
        hint=f"Check that edge-agent runs there, that both are on one network, and that its firewall lets "
        f"TCP port {port} in.",
    )


def candidates(addresses: Sequence[str]) -> list[str]:
    """What to connect to, in order, each with a scope where it needs one.

    An address this PC has as well leads back here: the bridges of containers have the same address everywhere. It
    counts only if the other side has no other: then it is on this PC.
    """
    known: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for text in dict.fromkeys(addresses):
        try:
            known.append(ipaddress.ip_address(text))
        except ValueError:
            continue
    mine = set(own_addresses())
    foreign = [address for address in known if not address.is_loopback and str(address) not in mine]
    found = []
    for address in foreign or known:
        if isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None:
            found += [f"{address}%{index}" for index, _ in socket.if_nameindex()]
        else:
            found.append(str(address))
    return found


def _start(address: str, port: int, selector: selectors.BaseSelector, opened: ExitStack) -> int:
    """Begin to connect; 0 if that succeeded at once, otherwise the error number."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )[0]
        connection = opened.enter_context(socket.socket(family, kind, protocol))
    except OSError as error:  # a family or a scope this PC does not have
        return error.errno if error.errno and error.errno > 0 else errno.EADDRNOTAVAIL
    connection.setblocking(False)
    error_number = connection.connect_ex(target)
    if error_number in _UNDER_WAY:
        selector.register(connection, selectors.EVENT_WRITE, address)
    return error_number


def _reason(error: int) -> str:
    return _REASONS.get(error) or os.strerror(error)
