"""A node's profile and its doctor's checks as text and tables. All of it comes from another PC: text, never markup."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tui import amounts
from tui.client.plan import Check, NodeDetail
from tui.client.state import Node, Versions
from tui.fleet.texts import fitted

_NAME_WIDTH = 24
_MARKS = {"ok": "✓ ok", "warning": "! warning", "fault": "✗ fault"}
_STYLES = {"ok": "", "warning": "bold", "fault": "bold reverse"}


def profile(detail: NodeDetail, names: Mapping[str, str]) -> RenderableType:
    """Everything of a node but its log and its checks.

    Args:
        detail: What is known of it.
        names: Names of the fleet's nodes by key.
    """
    node = detail.node
    parts: list[RenderableType] = [_facts(node)]
    if node.hardware.devices:
        parts += [Text("\ndevices", "bold"), _devices(node)]
    if node.links:
        parts += [Text("\nlinks", "bold"), _links(node, names)]
    parts += [Text("\nmeasured with this model", "bold"), _measured(detail.milliseconds)]
    return Group(*parts)


def checks(found: Sequence[Check]) -> RenderableType:
    """The doctor's lines, each with its word, and what to do."""
    if not found:
        return Text("the node's doctor said nothing", "dim")
    table = _table("", "", "", headings_shown=False)
    for check in found:
        what = fitted(check.what)
        if check.next_step:
            what.append("\n→ ").append_text(fitted(check.next_step))
        table.add_row(Text(_MARKS[check.status], _STYLES[check.status]), fitted(check.topic, _NAME_WIDTH), what)
    return table


def log(lines: Sequence[str]) -> Text:
    """The last lines of a log, oldest first."""
    if not lines:
        return Text("no line of its log", "dim")
    return Text("\n").join(fitted(line) for line in lines)


def _facts(node: Node) -> Table:
    hardware, condition, versions = node.hardware, node.condition, node.versions
    table = _table("", "", headings_shown=False)
    for name, value in (
        ("state", _state(node)),
        ("device", fitted(node.device or "none chosen yet")),
        ("processor", _sentence(hardware.processor, f"{hardware.cores} cores" if hardware.cores else "")),
        ("memory", Text(_memory(node))),
        ("disk", Text(f"{amounts.size(condition.disk_free)} free")),
        ("power", Text(_power(node))),
        ("load", _sentence(amounts.percent(condition.load), amounts.temperature(condition.temperature))),
        ("addresses", _sentence(*(node.addresses or (node.address,)))),
        ("versions", _versions(versions)),
        ("system", fitted(versions.system)),
        ("in the fleet", Text(_since(node.since))),
        ("key", fitted(node.key)),
    ):
        if value.plain:
            table.add_row(Text(name, "dim"), value)
    return table


def _versions(versions: Versions) -> Text:
    known = (("edge-agent", versions.edge_agent), ("OpenVINO", versions.openvino), ("Python", versions.python))
    return _sentence(*(f"{program} {version}" for program, version in known if version))


def _state(node: Node) -> Text:
    if node.problem:
        return Text("✗ ").append_text(fitted(node.problem))
    if node.work is None:
        return Text("the head" if node.is_head else "ready")
    far = f" {amounts.percent(node.work.done / node.work.total)}" if node.work.total > 0 else ""
    return fitted(node.work.what).append(far)


def _memory(node: Node) -> str:
    condition = node.condition
    text = f"{amounts.size(condition.memory_free)} of {amounts.size(node.hardware.memory)} free"
    text += f", {amounts.size(condition.memory_allowed)} allowed"
    return text + (f", {amounts.size(node.memory_planned)} planned" if node.memory_planned else "")


def _power(node: Node) -> str:
    condition = node.condition
    kind = "laptop, " if node.hardware.is_laptop else ""
    source = "mains" if condition.on_mains else "battery"
    return kind + source + ("" if condition.battery is None else f", {amounts.percent(condition.battery)} charged")


def _since(since: float) -> str:
    passed = amounts.duration(time.time() - since)
    return f"since {amounts.day(since)}, {amounts.clock(since)} ({passed})" if since > 0 else amounts.UNKNOWN


def _devices(node: Node) -> Table:
    table = _table("name", "what", "memory", "driver")
    for device in node.hardware.devices:
        table.add_row(
            fitted(device.name, _NAME_WIDTH),
            fitted(device.full_name),
            amounts.size(device.memory),
            fitted(device.driver or amounts.UNKNOWN),
        )
    return table


def _links(node: Node, names: Mapping[str, str]) -> Table:
    table = _table("to", "latency", "rate")
    for key, link in node.links.items():
        name = fitted(names.get(key) or key[:8], _NAME_WIDTH)
        table.add_row(name, amounts.milliseconds(link.latency_ms), amounts.rate(link.bytes_per_second))
    return table


def _measured(milliseconds: Mapping[str, Sequence[float]] | None) -> RenderableType:
    if not milliseconds or not milliseconds.get("rows"):
        return Text("not yet", "dim")
    table = _table("rows", "one layer", "head matrix")
    layers, heads = milliseconds.get("layer", ()), milliseconds.get("head", ())
    for index, rows in enumerate(milliseconds["rows"]):
        table.add_row(
            amounts.count(rows),
            amounts.milliseconds(layers[index] if index < len(layers) else None),
            amounts.milliseconds(heads[index] if index < len(heads) else None),
        )
    return table


def _sentence(*parts: str) -> Text:
    known = [fitted(part) for part in parts if part and part != amounts.UNKNOWN]
    return Text(", ").join(known)


def _table(*headings: str, headings_shown: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=headings_shown, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
