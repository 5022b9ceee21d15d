"""The answer of /fleet as tables for people. Names come from other PCs: they are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from agent.cli.tables import plain, titled
from pipeline.planning.amounts import amount
from shards.edges import edge_words
from shards.errors import StageError


def status_tables(fleet: dict[str, Any]) -> list[Table]:
    """Nodes, chains, links and pending nodes.

    Raises:
        StageError: the answer is of a model without a fleet.
    """
    if "nodes" not in fleet:
        raise StageError("the model is served by one PC, without a fleet", hint="Serve it without --local-stages.")
    names = fleet.get("carriers", {}) | {node["key"]: node["name"] for node in fleet["nodes"]}
    tables = [_nodes(fleet, names), _chains(fleet, names)]
    if any(node["links"] for node in fleet["nodes"]):
        tables.append(_links(fleet, names))
    if fleet["pending"]:
        tables.append(_pending(fleet))
    return tables


def _nodes(fleet: dict[str, Any], names: dict[str, str]) -> Table:
    carried: dict[str, list[str]] = {}
    for chain in fleet["chains"]:
        for stage in chain["stages"]:
            carried.setdefault(stage["node"], []).append(edge_words(*stage["layers"]))
    told = [chain["speculation"] for chain in fleet["chains"]]
    drafting = {guesses["node"] for guesses in told if guesses and not guesses["off"]}
    table = titled(
        f"fleet {fleet['fleet']['name']}, key {fleet['fleet']['key']}, port {fleet['fleet']['port']}",
        "node",
        "device",
        "layers",
        "memory",
        "load",
        "power",
        "version",
        "state",
    )
    for node in fleet["nodes"]:
        condition = node["condition"]
        layers = ", ".join(carried.get(node["key"], []))
        table.add_row(
            plain(node["name"] + (" (head)" if node["is_head"] else "")),
            plain(node["device"] or ""),
            layers,
            _memory(node),
            _load(condition),
            _power(condition),
            plain(node["versions"]["edge_agent"]),
            plain(node["problem"] or _work(node["work"]) or _part(node, layers, drafting)),
        )
    return table


def _part(node: dict[str, Any], layers: str, drafting: set[str]) -> str:
    """What a node is there for now."""
    return "serving" if layers else "drafting" if node["key"] in drafting else "ready"


def _memory(node: dict[str, Any]) -> str:
    free = f"{node['condition']['memory_free'] / 1e9:.1f} of {node['hardware']['memory'] / 1e9:.1f} GB free"
    return free + (f", {amount(node['memory_planned'])} planned" if node["memory_planned"] else "")


def _load(condition: dict[str, Any]) -> str:
    parts = [f"{condition['load']:.0%}"] if condition["load"] is not None else []
    parts += [f"{condition['temperature']:.0f} °C"] if condition["temperature"] is not None else []
    return ", ".join(parts)


def _work(work: dict[str, Any] | None) -> str:
    """What a node does beside serving, and how far it is."""
    if work is None:
        return ""
    return f"{work['what']}, {work['done'] / work['total']:.0%}" if work["total"] else str(work["what"])


def _power(condition: dict[str, Any]) -> str:
    if condition["battery"] is None:
        return "mains"
    return f"{'mains' if condition['on_mains'] else 'battery'}, {condition['battery']:.0%}"


def _chains(fleet: dict[str, Any], names: dict[str, str]) -> Table:
    table = titled(
        f"{fleet['model']['name']}, {fleet['model']['layers']} layers",
        "chain",
        "stages",
        "running",
        "waiting",
        "guesses",
    )
    for number, chain in enumerate(fleet["chains"], 1):
        stages = Text(" - ").join(
            plain(f"{names.get(stage['node'], stage['node'])} {edge_words(*stage['layers'])} {stage['engine']}")
            for stage in chain["stages"]
        )
        scheduler = chain["scheduler"]
        state = plain(chain["failure"]) if chain["failure"] else str(scheduler["running"])
        table.add_row(str(number), stages, state, str(scheduler["waiting"]), guessing(chain["speculation"], names))
    if not fleet["chains"]:
        table.add_row("", plain(fleet["problem"] or fleet["waits_for"] or "none yet"), "", "", "")
    return table


def guessing(told: dict[str, Any] | None, names: Mapping[str, str] = {}) -> Text:
    """What guesses how a chain's answers go on, where, how often it is right, and why it is off.

    Args:
        told: What /fleet says of it.
        names: Of nodes, by their keys.
    """
    if told is None:
        return plain("none")
    where = f" on {names[told['node']]}" if told["node"] in names else ""
    right = f", {told['right']} of {told['sent']} right ({told['acceptance']:.0%})" if told["sent"] else ""
    return plain(told["name"] + where + right + (f"; off: {told['off']}" if told["off"] else ""))


def _links(fleet: dict[str, Any], names: dict[str, str]) -> Table:
    table = titled("links", "from", "to", "latency", "rate")
    for node in fleet["nodes"]:
        for peer, link in node["links"].items():
            table.add_row(
                plain(node["name"]),
                plain(names.get(peer, peer[:8])),
                f"{link['latency_ms']:.2f} ms",
                f"{link['bytes_per_second'] / 1e6:.0f} MB/s",
            )
    return table


def _pending(fleet: dict[str, Any]) -> Table:
    table = titled("waiting to be let in", "code", "name", "address")
    for node in fleet["pending"]:
        table.add_row(node["code"], plain(node["name"] or "?"), plain(node["address"]))
    return table
