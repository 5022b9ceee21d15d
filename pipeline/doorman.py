"""Who may come in: the answer to ZeroMQ's question about each connection, before anything it says is read."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

_ZAP = "inproc://zeromq.zap.01"

_REFUSED = b"400"
_REFUSED_FOR_NOW = b"000"
"""No status of the RFC's: with it libzmq closes the connection at once, and the other side tries again. With 300, which
is meant for this, libzmq (4.3.5) leaves both sides waiting until the time for the handshake is over."""

_log = logging.getLogger(__name__)

Check = Callable[[str, str], bool]
"""Whether a public key (Z85) from an address may come in. Called on the doorman's thread, once a connection; must be
quick, for all others wait at the door meanwhile."""


def plain(address: str) -> str:
    """The address of a peer, an IPv4 one without what begins it on a socket that hears IPv6 too."""
    return address.removeprefix("::ffff:")


class Doorman:
    """Answers the authentication requests (RFC 27, ZAP) of all CURVE servers in a context.

    The key that was let in is the user id of the connection: `frame.get("User-Id")` of everything that arrives on it.

    It runs a thread until the context is terminated. pyzmq's own authenticator needs an asyncio loop, which on
    Windows is of the wrong kind.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._rules: dict[bytes, tuple[Check, bytes]] = {}
        """By ZAP domain: who may come in, and the status for those who may not."""
        self._numbers = itertools.count()
        self._has_complained = False
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        threading.Thread(target=self._serve, name="doorman", daemon=True).start()

    def let_in(self, welcome: str) -> bytes:
        """Let one public key in to a socket; returns the ZAP domain the socket must have."""
        return self.guard(lambda key, _address: key == welcome, final=True)

    def guard(self, check: Check, *, final: bool = False) -> bytes:
        """Let in to a socket whom `check` allows; returns the ZAP domain the socket must have.

        Args:
            check: Decides. If it raises, the answer is no.
            final: Those who are refused are told so, and their sockets do not come back. Otherwise the connection
                just ends, and their sockets try again: `check` may think better of it.
        """
        domain = b"door %d" % next(self._numbers)
        self._rules[domain] = check, (_REFUSED if final else _REFUSED_FOR_NOW)
        return domain

    def _serve(self) -> None:
        try:
            while True:
                request = self._socket.recv_multipart()
                self._socket.send_multipart(self._answer(request))
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, status, user = b"1.0", b"", _REFUSED, b""
        try:
            version, number, domain, address, _routing_id, mechanism, *credentials = request
            check, status = self._rules[domain]
            if mechanism == b"CURVE":
                (raw,) = credentials
                key = z85.encode(raw)
                if check(key.decode(), plain(address.decode())):
                    status, user = b"200", key
        except Exception:  # of a check: whatever it is, the door stays shut and the doorman at it
            if not self._has_complained:  # once: strangers can make it happen again and again
                self._has_complained = True
                _log.exception("a defect of edge-agent, please report it: the check of a key failed")
        return [version, number, status, b"", user, b""]
