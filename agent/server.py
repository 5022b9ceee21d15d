"""The HTTP server: uvicorn on a thread of its own; the main thread stays free to show things and to be interrupted."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from agent.address import DEFAULT_HOST, DEFAULT_PORT, url_at
from agent.http_protocol import ImpatientProtocol
from shards.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import FastAPI

_DRAIN_SECONDS = 2
"""The time between being told to end and having ended; what still runs at half of it is told so."""

_KEEP_ALIVE_SECONDS = 75
_POLL_SECONDS = 0.01


def is_loopback(host: str) -> bool:
    """Whether only this PC can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server:
    """A running server.

    Args:
        app: What it serves.
        bound: From `bind`; the server closes it.
        end_answers: Called on the event loop when answers must not go on.
    """

    def __init__(self, app: FastAPI, bound: socket.socket, end_answers: Callable[[], None]) -> None:
        self._socket, self._end_answers = bound, end_answers
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            http=ImpatientProtocol,
            log_config=None,
            log_level="error",  # what is no HTTP is answered with 400, and anybody can say it as often as he likes
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
        self._uvicorn = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        # waited for with an event: a Ctrl-C inside Thread.join makes Python 3.11 take the thread for ended
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="http", daemon=True).start()
        while not self._uvicorn.started and not self._ended.wait(_POLL_SECONDS):
            pass

    def wait(self, seconds: float) -> bool:
        """Wait for the server's end, which comes by itself only when it fails; whether it came."""
        return self._ended.wait(seconds)

    def close(self) -> None:
        """Take no more requests; answers may go on for a moment, then end in an error, and the server with them."""
        self._uvicorn.should_exit = True
        if not self._ended.wait(_DRAIN_SECONDS / 2) and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_answers)
        self._ended.wait()
        self._socket.close()

    def _run(self) -> None:
        # the selector loop everywhere: it is what ZeroMQ can live beside on Windows
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._uvicorn.serve(sockets=[self._socket]))
        finally:
            self._ended.set()


def bind(host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> socket.socket:
    """Take a port before anything is loaded, so that one in use is reported at once; 0 takes a free one.

    Raises:
        ConfigurationError: the port is in use, or the address is not one of this PC.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"{host} is not an address ({error.strerror})", where="--host") from error
    bound = socket.socket(family, kind, protocol)
    try:
        # Windows would let two servers share a port, POSIX would keep one closed for a minute after its server's end
        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigurationError(
                f"{host} is not an address of this PC", where="--host", hint="0.0.0.0 means all that it has."
            ) from error
        raise ConfigurationError(
            f"cannot listen on {host}, port {port} ({error.strerror})",
            where="--port",
            hint="Another program, perhaps another edge-agent, may be listening there; --port 0 takes a free one.",
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a server on this socket answers; if that is everywhere, the address by which this PC reaches it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return url_at(host, port)
