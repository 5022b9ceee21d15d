"""The sockets between PCs: CURVE on every one, and limits on what the other side can make them hold or wait for."""

from __future__ import annotations

import zmq

from pipeline.link import KeyPair, curve_socket, endpoint
from shards.errors import ConfigurationError

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

HANDSHAKE_SECONDS = 5.0
"""A connection that has not proven who it is by then is closed."""

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 4.0


def listen(
    context: Context,
    kind: int,
    keys: KeyPair,
    *,
    domain: bytes,
    max_bytes: int,
    waiting: int = 64,
    outgoing: int | None = None,
    host: str = "*",
    port: int = 0,
) -> Socket:
    """A listening socket.

    Args:
        context: One that has a Doorman.
        kind: zmq.ROUTER, ...
        keys: Of this side.
        domain: From the Doorman, who decides by it who may come in.
        max_bytes: Senders of larger message parts are cut off.
        waiting: Messages held for each peer, in each direction.
        outgoing: The same, of those to be sent, where that is another number.
        host: Address to listen on; `*` is every one, IPv4 and IPv6.
        port: 0 is any that is free.

    Raises:
        ConfigurationError: the port is taken, or the address is not this PC's.
    """
    socket = _socket(context, kind, keys, max_bytes, waiting)
    socket.sndhwm = outgoing or waiting
    socket.curve_server = True
    socket.zap_domain = domain
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody gets in
    try:
        socket.bind(endpoint(host, port or "*"))
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigurationError(
            f"cannot listen there ({zmq.strerror(error.errno or 0)})",
            where=f"{host}:{port}",
            hint="Choose another port.",
        ) from None
    return socket


def connect(
    context: Context,
    kind: int,
    keys: KeyPair,
    server: str,
    host: str,
    port: int,
    *,
    max_bytes: int,
    waiting: int = 64,
) -> Socket:
    """A socket that connects, and connects again whenever the connection is lost.

    Args:
        context: Any.
        kind: zmq.DEALER, ...
        keys: Of this side.
        server: Public key of the other side; nobody else is talked to.
        host: IP address or host name.
        port: Where it listens.
        max_bytes: If larger message parts come, the connection is cut.
        waiting: Messages held in each direction.

    Raises:
        ConfigurationError: `host` is no address or name.
    """
    socket = client(context, kind, keys, server, max_bytes=max_bytes, waiting=waiting)
    try:
        socket.connect(endpoint(host, port))
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigurationError(
            f"this is no address ({zmq.strerror(error.errno or 0)})", where=f"{host}:{port}"
        ) from None
    return socket


def client(context: Context, kind: int, keys: KeyPair, server: str, *, max_bytes: int, waiting: int = 64) -> Socket:
    """A socket like that of `connect` which has yet to be connected, to one address or more."""
    socket = _socket(context, kind, keys, max_bytes, waiting)
    socket.curve_serverkey = server.encode()
    socket.connect_timeout = _milliseconds(_CONNECT_SECONDS)
    socket.reconnect_ivl = _milliseconds(_RETRY_SECONDS)
    socket.reconnect_ivl_max = _milliseconds(_LONGEST_RETRY_SECONDS)
    return socket


def _socket(context: Context, kind: int, keys: KeyPair, max_bytes: int, waiting: int) -> Socket:
    socket = curve_socket(context, kind, keys)
    socket.handshake_ivl = _milliseconds(HANDSHAKE_SECONDS)
    socket.heartbeat_ivl = 0  # what is lost is for the messages' own heartbeats to say
    socket.maxmsgsize = max_bytes
    socket.set_hwm(waiting)
    return socket


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
