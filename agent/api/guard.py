"""What a request must pass before anybody reads it: the host it names, the key it carries, the size of its body."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api.errors import ApiError
from agent.server import is_loopback

MAX_BODY_BYTES = 8 * 2**20
"""Room for a prompt of a million tokens as text."""

CALLER = "edge_agent.caller"
"""Where a request's scope says which key it came by; nothing is there where no key is wanted."""

_PORT = re.compile(r":\d+$")
_OPEN_PATHS = frozenset({"/healthz"})


class Guard:
    """ASGI middleware.

    With a key, every request but /healthz must carry it, or the owner's key, as a bearer token. Without one the server
    listens on loopback only, and what remains is other people's web pages in the user's own browser: those are kept out
    by asking for a loopback `Host` (no DNS rebinding) and for JSON bodies (no form posts from elsewhere).
    """

    def __init__(
        self, app: ASGIApp, *, key: str | None = None, owner_key: str | None = None, max_body: int = MAX_BODY_BYTES
    ) -> None:
        self._app, self._max_body = app, max_body
        named = {} if key is None else {"api": key, "owner": owner_key}
        self._keys = {name: each.encode() for name, each in named.items() if each is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counted = _Counted(receive, self._max_body)
        try:
            self._check(scope)
            await self._app(scope, counted, send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self._keys:
            host = _PORT.sub("", headers.get("host", "")).lower()
            if not is_loopback(host.removeprefix("[").removesuffix("]")):
                raise ApiError(403, f"this server answers to localhost only, not to {host!r}", code="wrong_host")
        elif scope["path"] not in _OPEN_PATHS:
            authorization = headers.get("authorization", "")
            scope[CALLER] = next((name for name, key in self._keys.items() if bears(authorization, key)), None)
            if scope[CALLER] is None:
                raise ApiError(
                    401,
                    "this server wants its key, as the header: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # none at all is what a page's script can send anywhere as well
                message = f"the body must be JSON (Content-Type: application/json), not {kind or 'of no type'}"
                raise ApiError(415, message, code="unsupported_media_type")
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length) > self._max_body:
                raise _too_large(int(length), self._max_body)


def bears(authorization: str, key: bytes) -> bool:
    """Whether an Authorization header bears a key as its token."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), key)


def owner_only(key: str) -> Callable[[str], Awaitable[None]]:
    """A dependency of endpoints that want the owner's key even on loopback, where every local user can knock."""

    async def check(authorization: Annotated[str, Header()] = "") -> None:
        if not bears(authorization, key.encode()):
            raise ApiError(
                401,
                "looking after the fleet wants the API key of the user who runs the head: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


class _Counted:
    """A `receive` that stops at the limit, for bodies that come in chunks without saying how long they are."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._seen = receive, limit, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > self._limit:
                raise _too_large(self._seen, self._limit)
        return message


def _too_large(size: int, limit: int) -> ApiError:
    return ApiError(413, f"the body has {size} bytes or more, the limit is {limit}", code="body_too_large")
