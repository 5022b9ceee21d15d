from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest
from fastapi import FastAPI, Request, Response

from agent import server
from agent.http_protocol import ImpatientProtocol

SECONDS = 30


@pytest.fixture
def connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """To a server that waits so long for a first request, and not for another one."""
    app = FastAPI()

    @app.middleware("http")
    async def lose_patience(asked: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        monkeypatch.setattr(ImpatientProtocol, "request_seconds", 0.1)
        return await answer(asked)

    monkeypatch.setattr(ImpatientProtocol, "request_seconds", request.param)
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", 0.2)
    bound = server.bind(port=0)
    running = server.Server(app, bound, lambda: None)
    with socket.create_connection(bound.getsockname(), timeout=SECONDS) as client:
        yield client
    running.close()


def read_to_end(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("connection", [0.1], indirect=True)
@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: here\r\n"])
def test_who_asks_nothing_is_not_waited_for(connection: socket.socket, said: bytes) -> None:
    connection.sendall(said)
    assert read_to_end(connection) == b""


@pytest.mark.parametrize("connection", [60.0], indirect=True)
def test_nor_is_who_has_asked_something_before(connection: socket.socket) -> None:
    connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: here\r\n\r\n")
    assert b"404" in connection.recv(65536)
    connection.sendall(b"GET")
    read_to_end(connection)


@pytest.mark.parametrize("connection", [60.0], indirect=True)
def test_what_is_no_http_is_answered_and_not_logged(
    connection: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "uvicorn.access"):
        connection.sendall(b"\0" * 100 + b"\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")
    assert not caplog.records
