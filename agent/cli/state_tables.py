"""The whole answer of /fleet as tables: what `status` shows, and requests, steps and events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from agent.cli.fleet_tables import guessing, status_tables
from agent.cli.tables import plain, titled
from shards.edges import edge_words

_EVENTS = 20


def state_tables(state: dict[str, Any]) -> list[Table]:
    """Nodes, chains, links and pending nodes (without a fleet: the stages), then requests and the last events."""
    tables = status_tables(state) if "nodes" in state else [_stages(state)]
    tables.append(_requests(state))
    if state.get("events"):
        tables.append(_events(state))
    return tables


def _stages(state: dict[str, Any]) -> Table:
    """The one chain of a PC without a fleet."""
    model = state["model"]
    table = titled(f"{model['name']}, {model['layers']} layers, without a fleet", "stage", "layers", "device", "engine")
    for column in ("compute", "wait"):
        table.add_column(column, justify="right")
    for chain in state["chains"]:
        table.caption = Text("guesses: ") + guessing(chain["speculation"])
        for number, stage in enumerate(chain["stages"]):
            times = stage["microseconds"]
            table.add_row(
                str(number),
                edge_words(*stage["layers"]),
                plain(stage["device"]),
                plain(stage["engine"]),
                *(f"{times[name] / 1000:.2f} ms" if times else "" for name in ("compute", "wait")),
            )
    return table


def _requests(state: dict[str, Any]) -> Table:
    table = titled("requests", "id", "client", "state")
    for column in ("prompt", "answer", "age", "tok/s"):
        table.add_column(column, justify="right")
    for chain in state["chains"]:
        for request in chain.get("requests", ()):
            rate = request["tokens_per_second"]
            table.add_row(
                plain(request["id"]),
                plain(request["client"]),
                plain(request["state"]),
                str(request["prompt_tokens"]),
                f"{request['completion_tokens']} of {request['max_tokens']}",
                f"{request['age_seconds']:.0f} s",
                "" if rate is None else f"{rate:.1f}",
            )
    if parked := state.get("parked"):
        table.add_row("", "", f"{parked} wait for a chain", "", "", "", "")
    if not table.row_count:
        table.add_row("none", "", "", "", "", "", "")
    return table


def _events(state: dict[str, Any]) -> Table:
    events = state["events"][-_EVENTS:]
    table = titled(
        "events" if len(events) == len(state["events"]) else f"the last {len(events)} events", "when", "what"
    )
    for event in events:
        when = datetime.fromtimestamp(event["time"]).astimezone()
        table.add_row(f"{when:%Y-%m-%d %H:%M:%S}", plain(event["what"]))
    return table
