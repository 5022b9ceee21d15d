"""The screen in a browser of this PC: each visit runs it as a process, whose terminal is the page.

Who can open the page can do what this user can do with the screen, so: it listens on loopback only; the address holds a
secret, which other users of the PC don't see; and a page from elsewhere, in the user's own browser, is refused by the
host it names and the origin it has.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from agent.address import DEFAULT_HOST
from agent.cli import interruption, output
from shards.errors import ConfigurationError

if TYPE_CHECKING:
    from aiohttp import web

_SECRET_BYTES = 32
_UNQUOTABLE = re.compile(r'["%\r\n\0]')
"""What quotes do not keep from cmd.exe."""


def show_in_browser(command: Sequence[str], port: int) -> None:
    """Serve the screen until Ctrl-C.

    Args:
        command: What runs the screen of a visit.
        port: To listen on; 0 takes a free one.

    Raises:
        ConfigurationError: the extra is not installed, or the port is in use.
    """
    try:
        from aiohttp import web
    except ModuleNotFoundError:
        raise ConfigurationError(
            "the screen in a browser wants the extra `browser`", where="--browser", hint='pip install -e ".[browser]"'
        ) from None
    from agent.server import bind, url_of

    bound = bind(DEFAULT_HOST, port)
    root, secret = url_of(bound), secrets.token_urlsafe(_SECRET_BYTES)
    output.note("The screen is at this address. Whoever has it and is on this PC can use it. Ctrl-C ends it.")
    output.show(f"{root}/{secret}/")
    web.run_app(
        create_app(shell_line(command), root, secret), sock=bound, handle_signals=False, access_log=None, print=None
    )
    if code := interruption.exit_code():
        raise SystemExit(code)


async def create_app(line: str, root: str, secret: str) -> web.Application:
    """The server's app.

    Args:
        line: What runs the screen of a visit, as a shell takes it.
        root: The URL at which it listens; the only origin that is let in.
        secret: The first part of every path.
    """
    from aiohttp import web
    from textual_serve.server import Server

    class Page(Server):
        """Nothing but its routes is used: it would listen, print and log by itself."""

        async def on_startup(self, app: web.Application) -> None:
            """Say nothing."""

    host = root.removeprefix("http://")
    headers = {
        # the page asks for a font from elsewhere; nobody else is to hear of it
        "Content-Security-Policy": f"default-src 'self' 'unsafe-inline' data: blob:; connect-src 'self' ws://{host}; "
        "frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.path.lstrip("/").partition("/")[0]
        if request.headers.get("Host") != host or not secrets.compare_digest(
            given.encode(errors="replace"), secret.encode()
        ):
            raise web.HTTPNotFound
        origin = request.headers.get("Origin")
        is_socket = "upgrade" in request.headers.get("Connection", "").lower()
        if origin != root and (is_socket or origin is not None):
            raise web.HTTPForbidden(text="this page is for its own origin only")
        return await handler(request)

    async def harden(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(headers)

    page = Page(line, title="edge-agent", public_url=root)
    app = web.Application(middlewares=[guard])
    app.on_response_prepare.append(harden)
    app.add_subapp(f"/{secret}", await page._make_app())
    return app


def shell_line(command: Sequence[str]) -> str:
    """A command as the shell of this system takes it, each part quoted.

    Raises:
        ConfigurationError: a part cannot be quoted.
    """
    if os.name != "nt":
        return shlex.join(command)
    for part in command:
        if _UNQUOTABLE.search(part):
            raise ConfigurationError(f"{part!r} has a character that cannot go through cmd.exe", where="--browser")
    # a backslash before the closing quote would take it in
    return " ".join(f'"{part}{_backslashes_at_the_end(part)}"' for part in command)


def _backslashes_at_the_end(text: str) -> str:
    return text[len(text.rstrip("\\")) :]
