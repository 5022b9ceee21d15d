"""`edge-agent doctor`: what keeps this PC from being a good node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agent.address import control_address
from agent.cli import output

if TYPE_CHECKING:
    from agent.doctor.check import Check

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Also see whether the head at this address can be reached.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of all checks as JSON.")] = False,
) -> None:
    """See what keeps this PC from being a good node, and what to do about it.

    Changes nothing. Ends with exit code 1 if there is a fault; warnings are not.

    Example: edge-agent doctor --head 192.168.1.20:8115
    """
    from dataclasses import asdict

    from agent.doctor.examination import examine, topics

    address = None if head is None else control_address(head)
    with output.progress_bars(quiet=as_json) as progress:
        checks = examine(topics(address), progress)
    if as_json:
        output.print_json([asdict(check) for check in checks])
    else:
        _show(checks)
    if any(check.status == "fault" for check in checks):
        raise typer.Exit(1)


def _show(checks: Sequence[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    topic = None
    for check in checks:
        what = Text(check.what)
        if check.next_step is not None:
            what.append(f"\n→ {check.next_step}", style="dim" if check.status == "ok" else "")
        table.add_row(
            Text("" if check.topic == topic else check.topic, style="bold"),
            Text(check.status, style=_STYLES[check.status]),
            what,
        )
        topic = check.topic
    output.show(table)
    output.show("\n" + ", ".join(f"{status}: {sum(check.status == status for check in checks)}" for status in _STYLES))
