"""`edge-agent chat`, `fleet` and `tui`: the screen. And `fleet --once`, the same as tables for logs and pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.address import DEFAULT_URL
from agent.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from tui.heads import StartedHead
    from tui.top_bar import Tab

Url = Annotated[
    str | None,
    typer.Option(help="Where the head listens. Default: this PC, else what is found by mDNS.", show_default=False),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the head's API key. On this PC: that of your settings.", show_default=False),
]
_INSTEAD = "Without one: edge-agent ask QUESTION, and edge-agent fleet --once."
_FORCED = "--in-browser"
_WIDEST = 1000
"""Columns of a table in a log; it takes what it needs."""


def chat(url: Url = None, api_key_file: KeyFile = None) -> None:
    """Chat with the model, in the terminal; the fleet is on the other tab.

    Without --url it talks to the head of this PC, or shows those it finds on the network, or offers to start one.

    Example: edge-agent chat --url http://192.168.1.5:8114 --api-key-file key.txt
    """
    _want_terminal()
    _show("chat", url, api_key_file)


def fleet(
    url: Url = None,
    api_key_file: KeyFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state as tables, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As --once, as one JSON document.")] = False,
) -> None:
    """Show the fleet at work, in the terminal: its map, requests, who waits; the chat is on the other tab.

    Examples:

        edge-agent fleet

        edge-agent fleet --once >> fleet.log
    """
    if once or as_json:
        _print_state(url, api_key_file, as_json=as_json)
        return
    _want_terminal()
    _show("fleet", url, api_key_file)


def tui(
    url: Url = None,
    api_key_file: KeyFile = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="Show it in a browser of this PC instead of the terminal.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --browser: port to listen on; 0 takes a free one.")
    ] = 0,
    in_browser: Annotated[bool, typer.Option(_FORCED, hidden=True)] = False,
) -> None:
    """Chat and fleet on one screen, in the terminal or in a browser.

    Example: edge-agent tui --browser
    """
    if browser:
        from agent.cli.browser import show_in_browser

        command = [sys.executable, "-X", "utf8", "-P", "-m", "agent", "tui", _FORCED]
        command += ["--url", url] if url else []
        command += ["--api-key-file", str(api_key_file.absolute())] if api_key_file else []
        show_in_browser(command, port)
        return
    if not in_browser:
        _want_terminal()
    _show("chat", url, api_key_file)


def _want_terminal() -> None:
    """Say at once what a screen cannot be drawn on.

    Raises:
        ConfigurationError: there is no terminal, or one that cannot move its cursor.
    """
    from shards.errors import ConfigurationError

    # the screen reads from the first and is drawn on the third; the second redirected means: no screen wanted
    streams = {"input": sys.stdin, "output": sys.stdout, "error output": sys.stderr}
    missing = [name for name, stream in streams.items() if stream is None or not stream.isatty()]
    if missing:
        raise ConfigurationError(
            f"the screen wants a terminal, and standard {missing[0]} is none", where="terminal", hint=_INSTEAD
        )
    if os.environ.get("TERM") == "dumb":
        raise ConfigurationError(
            "this terminal says that it cannot move its cursor (TERM=dumb), so there is no screen to draw on",
            where="terminal",
            hint=f"{_INSTEAD} If it can: TERM=xterm-256color edge-agent ...",
        )


def _show(tab: Tab, url: str | None, key_file: Path | None) -> None:
    """Run the screen until its end."""
    from agent import paths
    from agent.cli.terminal import end_with_terminal
    from agent.keys import read_key
    from agent.look_around import look_around
    from agent.started_head import HeadStarter
    from tui.app import EdgeAgentApp
    from tui.client.address import complete
    from tui.heads import Surroundings

    key = read_key(key_file) if key_file else None
    folder = paths.data_folder()
    app = EdgeAgentApp(
        folder,
        complete(url, DEFAULT_URL) if url else None,
        tab=tab,
        surroundings=Surroundings(DEFAULT_URL, look_around, _KeyRing(key), HeadStarter(folder / "head.log")),
    )
    end_with_terminal()
    left = app.run()
    if left is not None:
        _say_what_is_left(left, folder / "head.log")
    if app.return_code:
        raise typer.Exit(app.return_code)


class _KeyRing:
    """The key for a URL: the one that was given, else this user's own, which never leaves this PC."""

    def __init__(self, given: str | None) -> None:
        self._given = given

    def __call__(self, url: str) -> str | None:
        from agent.client import is_loopback_url
        from agent.keys import found_key

        return self._given or (found_key() if is_loopback_url(url) else None)


def _say_what_is_left(head: StartedHead, log: Path) -> None:
    end = f"taskkill /PID {head.process} /F" if os.name == "nt" else f"kill {head.process}"
    output.note(f"The head goes on at {head.url} (log: {log}). End it with: {end}")


def _print_state(url: str | None, key_file: Path | None, *, as_json: bool) -> None:
    from agent.cli.state_tables import state_tables
    from agent.client import Client
    from agent.keys import read_key
    from shards.errors import ConfigurationError
    from tui.client.address import complete

    if sys.stdout is None:
        raise ConfigurationError("standard output is closed", where="--once", hint="Give it a file: --once > fleet.txt")
    key_for = _KeyRing(read_key(key_file) if key_file else None)
    where = complete(url, DEFAULT_URL) if url else _find_url()
    with Client(where, key_for(where)) as client:
        state: dict[str, Any] = client.get("/fleet")
    if as_json:
        output.print_json(state)
        return
    for table in state_tables(state):
        _print_table(table)


def _print_table(table: Table) -> None:
    """A row stays on its line where no terminal's width bounds it: that is how logs are searched."""
    if sys.stdout.isatty():
        output.show(table)
        return
    from rich.console import Console

    Console(highlight=False, width=_WIDEST).print(table, no_wrap=True)


def _find_url() -> str:
    """The usual place if somebody listens there, else the one head that is found.

    Raises:
        ConfigurationError: there is none, or more than one.
    """
    from agent.client import ServerError
    from agent.look_around import look_around
    from shards.errors import ConfigurationError

    if _first_that_answers((DEFAULT_URL,)):
        return DEFAULT_URL
    found = look_around()
    heads = [head for head in found if head.urls]
    if len(heads) == 1 and (url := _first_that_answers(heads[0].urls)):
        output.note(f"The head found by mDNS: {url}")
        return url
    if heads:
        choice = ", ".join(head.urls[0] for head in heads)
        what = (
            f"there are {len(heads)} heads on this network"
            if len(heads) > 1
            else "the head of this network does not answer"
        )
        raise ConfigurationError(what, where="--url", hint=f"Name one: {choice}.")
    raise ServerError(
        "no head answers on this PC, and none is found by mDNS",
        where=DEFAULT_URL,
        hint="Start one with edge-agent serve PACKAGE, or name one with --url.",
    )


def _first_that_answers(urls: Iterable[str]) -> str | None:
    """A head has several addresses, and not every one leads to it from here."""
    from agent.client import Client, ServerError
    from shards.errors import EdgeAgentError

    for url in urls:
        try:
            with Client(url) as client:
                client.get("/healthz")
        except ServerError:
            continue
        except EdgeAgentError:
            return url
        return url
    return None
