"""A head that answers over real HTTP what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def fleet_state(**changes: Any) -> dict[str, Any]:
    """A state with one chain of two stages on two nodes."""
    stage = {"engine": "openvino-paged", "device": "CPU", "kv_tokens": 8192, "microseconds": None, "sent_bytes": 0}
    state: dict[str, Any] = {
        "model": {"name": "SmolLM2-135M", "package_id": "p", "layers": 30, "context_length": 8192, "weights": "int4"},
        "chains": [
            {
                "id": 1,
                "stages": [
                    {**stage, "layers": [0, 15], "node": "key-1", "use": 0.5},
                    {**stage, "layers": [15, 30], "node": "key-2", "use": None},
                ],
                "microseconds": {"wire": 100.0, "head": 50.0, "listeners": 1.0},
                "traversal_ms": 10.0,
                "scheduler": {"running": 1, "waiting": 2, "completion_tokens": 100},
                "requests": [],
                "steps": [],
                "failure": None,
                "a field of later": 1,
            }
        ],
        "parked": 0,
        "fleet": {"name": "home", "key": "k", "port": 8115},
        "nodes": [node("pc-1", "key-1", is_head=True), node("pc-2", "key-2")],
        "pending": [],
        "events": [],
        "problem": None,
        "waits_for": "",
    }
    return {**state, **changes}


def node(name: str, key: str, **changes: Any) -> dict[str, Any]:
    """A node of a state."""
    condition = {
        "memory_free": 8 * 10**9,
        "memory_allowed": 6 * 10**9,
        "disk_free": 10**11,
        "battery": None,
        "on_mains": True,
    }
    return {
        "name": name,
        "key": key,
        "address": "192.168.1.2",
        "addresses": [],
        "since": 0.0,
        "is_head": False,
        "versions": {"edge_agent": "0.1.0", "protocol": 1, "openvino": "2026.4", "python": "3.11", "system": "Linux"},
        "hardware": {"processor": "CPU", "cores": 8, "memory": 16 * 10**9, "devices": [], "is_laptop": False},
        "condition": condition,
        "device": "CPU",
        "links": {},
        "work": None,
        "problem": None,
        **changes,
    }


def error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error as the API tells it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def chunk(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a streamed answer."""
    return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}]}


@dataclass
class ToldHead:
    """What it answers can be changed while it runs."""

    state: dict[str, Any] = field(default_factory=fleet_state)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """By method and path: status, and JSON or bytes."""
    stream: Callable[[], Iterator[Any]] = lambda: iter(())
    """Events of an answer: JSON, or bytes as they are."""
    key: str | None = None
    asked: list[tuple[str, Any]] = field(default_factory=list)
    broken_off: threading.Event = field(default_factory=threading.Event)
    """A client left in mid-answer."""
    url: str = ""

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path."""
        return [body for asked, body in self.asked if asked == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    head: ToldHead

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        what = f"{self.command} {self.path}"
        self.head.asked.append((what, body))
        if self.head.key is not None and self.headers.get("Authorization") != f"Bearer {self.head.key}":
            self._send(401, error("this server wants its key"))
        elif what in self.head.answers:
            self._send(*self.head.answers[what])
        elif what == "GET /fleet":
            self._send(200, self.head.state)
        elif what == "POST /v1/chat/completions":
            self._stream()
        else:
            self._send(404, error(f"there is no {self.path} here"))

    def _send(self, status: int, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for event in self.head.stream():
                if isinstance(event, float):
                    time.sleep(event)
                    continue
                data = (
                    event
                    if isinstance(event, bytes)
                    else b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
                )
                self.wfile.write(data)
                self.wfile.flush()
        except OSError:
            self.head.broken_off.set()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def leave(self) -> None:
        """End as a process does: with its connections."""
        self.shutdown()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news."""


@contextmanager
def told_head(port: int = 0, head: ToldHead | None = None) -> Iterator[ToldHead]:
    """A running head."""
    head = head or ToldHead()
    handler = type("Handler", (_Handler,), {"head": head})
    with _Server(("127.0.0.1", port), handler) as server:
        head.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield head
        finally:
            server.leave()
            thread.join()
