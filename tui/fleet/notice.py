"""What a fleet's keeper should know first, in a line. Pure."""

from __future__ import annotations

from tui.client.plain import one_line
from tui.client.state import Fleet
from tui.client.watch import Connection

_LONGEST_NAME = 30
"""What the node wants is to be read too."""


def notice(connection: Connection, fleet: Fleet | None) -> str:
    """What is wrong, and who waits; empty: nothing, nobody."""
    parts = []
    if connection.state == "gone":
        old = ", and what is shown is what it said last" if fleet is not None else ""
        parts.append(f"× the head is gone{old}{_why(connection)}")
    elif connection.state == "locked":
        parts.append(f"× the head wants an API key{_why(connection)}")
    if fleet is not None:
        if fleet.problem:
            parts.append(f"! {one_line(fleet.problem)}")
        if fleet.chains and fleet.waits_for:
            parts.append(f"… {one_line(fleet.waits_for)}")
        if fleet.parked:
            parts.append(f"… {fleet.parked} waiting for a chain")
        if len(fleet.pending) == 1:
            parts.append(f"? {one_line(fleet.pending[0].name or 'a node', _LONGEST_NAME)} waits to be let in (a)")
        elif fleet.pending:
            parts.append(f"? {len(fleet.pending)} nodes wait to be let in (a)")
    return " · ".join(parts)


def nothing_yet(connection: Connection) -> str:
    """Why there is no map."""
    match connection.state:
        case "looking":
            return one_line(connection.why) or "looking for the head …"
        case "up":
            return "waiting for the head's first state …"
        case "none":
            return f"there is no head{_why(connection)}"
        case "gone":
            return f"no head answers{_why(connection)}"
        case "locked":
            return "the head wants an API key"


def _why(connection: Connection) -> str:
    return f": {one_line(connection.why)}" if connection.why else ""
