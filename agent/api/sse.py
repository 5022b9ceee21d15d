"""Server-sent events: one response class, lean enough to send an event for each token of each user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent.api.errors import explain

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: dict[str, Any]) -> bytes:
    """One event with a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends what an iterator of events yields, then [DONE]; an error becomes the last event, and no [DONE] follows.

    When the client leaves, the iterator is closed at once, wherever it waits.
    """

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        self._events = events
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(until_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": _HEADERS})
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            last = DONE
        except OSError:  # the client has gone, and with it whom to tell
            return
        except Exception as error:
            last = event(explain(error).body)
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
