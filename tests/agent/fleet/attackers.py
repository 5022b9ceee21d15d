"""Those who should not come in: plain TCP clients, strangers with keys of their own, and a tape of who did come in."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import zmq

from pipeline.link import KeyPair

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

PATIENCE = 60.0
"""Seconds a test waits for what must happen."""

GREETING = bytes([0xFF, *[0] * 8, 0x7F, 3, 0]) + b"CURVE".ljust(20, b"\0") + bytes(32)
"""How a ZeroMQ 3 client that wants CURVE begins (RFC 23)."""


@contextlib.contextmanager
def tcp(port: int) -> Iterator[socket.socket]:
    """A plain connection to a port of this PC."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        yield connection


def is_cut_off(connection: socket.socket) -> bool:
    """Whether the other side ends the connection; reads what it says until then."""
    with contextlib.suppress(ConnectionError):
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            return False
    return True


def drip(connection: socket.socket, data: bytes, seconds: float) -> bool:
    """Send a byte every so many seconds; whether the other side ends the connection before all are sent."""
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        for byte in data:
            connection.send(bytes([byte]))
            try:
                while connection.recv(4096):
                    pass
                return True
            except TimeoutError:
                continue
        return False
    return True


def stranger(context: Context, server: str, port: int, keys: KeyPair | None = None) -> Socket:
    """A client with a key the server does not know; it has said something."""
    keys = keys or KeyPair.new()
    client = context.socket(zmq.DEALER)
    client.linger, client.reconnect_ivl, client.reconnect_ivl_max = 0, 50, 200
    client.curve_publickey, client.curve_secretkey = keys.public.encode(), keys.secret.encode()
    client.curve_serverkey = server.encode()
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send(b"forged")
    return client


class Tape:
    """Stands between a client and a server, and records what the client says."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.client = b""
        self.server = b""
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the client has gone."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _relay(self) -> None:
        with self._listener, self._listener.accept()[0] as client, tcp(self._to) as server:
            back = threading.Thread(target=self._relay_back, args=(server, client), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    self.client += data
                    server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)
            back.join(PATIENCE)

    def _relay_back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self.server += data
                client.sendall(data)
