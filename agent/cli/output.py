"""What the commands print: results on stdout, everything else on stderr; quiet and plain when nobody watches."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shards.errors import ConfigurationError, EdgeAgentError
from shards.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


_bars: Console | None = None
"""What the bars are drawn on, while there are some."""


def never_fail_to_encode() -> None:
    """Print ? for what the terminal, or on Windows a file, has no code for: better than not to print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def console() -> Console:
    """For results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def notes() -> Console:
    """For what is not the result: progress, hints, errors; above the bars where there are some."""
    from rich.console import Console

    if _bars is not None:
        return _bars
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def print_json(value: Any) -> None:
    """One JSON document on stdout, in ASCII: all that a command with --json prints there."""
    print(json.dumps(value, indent=2, default=str), flush=True)


def show(renderable: RenderableType) -> None:
    """A table or text with markup as a result."""
    console().print(renderable)


def note(text: str) -> None:
    """One line for the person watching; plain text, no markup."""
    notes().print(text, markup=False)


def show_error(error: BaseException, *, as_json: bool = False) -> None:
    """What happened, where, and what to do next: to people on stderr, to programs on stdout."""
    what, where, hint = str(error) or type(error).__name__, None, None
    if isinstance(error, EdgeAgentError):
        what, where, hint = error.what, error.where, error.hint
    if as_json:
        print_json({"error": {"type": type(error).__name__, "what": what, "where": where, "hint": hint}})
        return
    from rich.text import Text

    text = Text.assemble(("error: ", "bold red"), (f"{where}: " if where else "", "bold"), what)
    if hint:
        text.append(f"\n{hint}", style="dim")
    notes().print(text)


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Progress]:
    """A bar for each piece of work reported; nothing where stderr is not a terminal, or when `quiet`.

    Totals above 10,000 are taken for bytes. The bars go away when the work is done.
    """
    if quiet or not sys.stderr.isatty():
        from shards.progress import silent

        yield silent
        return
    from rich import progress as bars

    shown = bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[amount]}", style="dim", markup=False),
        bars.TimeRemainingColumn(),
        console=notes(),
        transient=True,
    )
    global _bars
    _bars = shown.console
    try:
        with shown:
            yield _Bars(shown)
    finally:
        _bars = None


class _Bars:
    """Keeps one bar a description."""

    def __init__(self, shown: RichProgress) -> None:
        self._shown = shown
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: float, total: float) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._shown.add_task(what, total=total, amount="")
        self._shown.update(self._tasks[what], completed=done, total=total, amount=amount(done, total))


def amount(done: float, total: float) -> str:
    """Progress in megabytes; nothing where the total is too small to be bytes."""
    if total <= 10_000:
        return ""
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 8GB, 7.5 GiB or 500M.

    Raises:
        ConfigurationError: it is no size, or not even a byte.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE)
    if found is None or found[2].upper() not in _UNITS:
        raise ConfigurationError(f"{text!r} is not a size", where="--memory", hint="Write it as 8GB or 7.5GiB.")
    if (size := int(float(found[1]) * _UNITS[found[2].upper()])) == 0:
        raise ConfigurationError(f"{text!r} is no memory to give", where="--memory", hint="Write it as 8GB or 7.5GiB.")
    return size
