"""What the map says of nodes, links and chains: words and numbers out of a state, whatever their place. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from tui import amounts
from tui.client.history import History
from tui.client.plain import one_line
from tui.client.state import Chain, Fleet, Node, Stage
from tui.layers import Edge, ends

Kind = Literal["serving", "working", "idle", "left out", "gone"]

SYMBOLS: dict[Kind, str] = {"serving": "●", "working": "◐", "idle": "○", "left out": "!", "gone": "×"}
"""One for each, so that no state is told by its colour alone."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node where it stands on the map; one that carries two stages stands there twice."""

    key: str
    """Of the node; empty where there is no fleet, and so nothing more to ask."""
    name: str
    kind: Kind
    state: str
    """In words: `serving`, `fetching 42 %`, `left out: no memory`."""
    details: str = ""
    """More words for the same, for where there is room: `fetching layers 40 to 48 42 %`."""
    is_head: bool = False
    device: str = ""
    layers: tuple[Edge, Edge] | None = None
    """First, and end (exclusive)."""
    progress: float | None = None
    """0 to 1 of its work, where it is known."""
    memory_planned: int = 0
    memory_allowed: int = 0
    use: float | None = None
    load: float | None = None
    temperature: float | None = None
    battery: float | None = None
    on_mains: bool = True

    def state_in(self, width: int) -> str:
        """The words that fit into so many cells, or the fewest there are."""
        return self.details if self.details and cell_len(self.details) <= width else self.state

    @property
    def memory_part(self) -> float | None:
        """Planned of allowed."""
        return self.memory_planned / self.memory_allowed if self.memory_allowed > 0 else None

    @property
    def layer_words(self) -> str:
        """`0-9`, or `7` where it is one, or nothing."""
        if self.layers is None:
            return ""
        first, last = ends(*self.layers)
        return f"{first}-{last}" if first != last else first

    @property
    def power_words(self) -> str:
        """`battery 80 %`, `charging 80 %`, or nothing."""
        if self.battery is None:
            return ""
        return f"{'charging' if self.on_mains else 'battery'} {amounts.percent(self.battery)}"


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The way from a stage to the next one; from the last one back to the head."""

    latency_ms: float | None = None
    bytes_per_second: float | None = None
    """What it can carry, measured."""
    flow: float | None = None
    """Bytes a second that it carries now."""
    is_inside: bool = False
    """Both ends are on one PC."""

    @property
    def words(self) -> tuple[str, ...]:
        """Latency, rate, and what it carries now."""
        if self.is_inside:
            known: list[str] = ["same PC"]
        else:
            known = [amounts.milliseconds(self.latency_ms)] if self.latency_ms is not None else []
            known += [amounts.rate(self.bytes_per_second)] if self.bytes_per_second is not None else []
        return (*known, f"▸{amounts.rate(self.flow)}") if self.flow is not None else tuple(known)


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """A chain: as many links as nodes, the last one back to the head."""

    title: tuple[str, ...]
    """What matters most first."""
    failure: str
    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...]


@dataclass(frozen=True, slots=True)
class MapFacts:
    """Everything on the map."""

    chains: tuple[ChainFacts, ...] = ()
    idle: tuple[NodeFacts, ...] = ()
    """Nodes that carry no stage."""
    message: str = ""
    """Why there is no chain."""


def map_facts(fleet: Fleet, history: History | None = None) -> MapFacts:
    """What there is to draw of a state."""
    message = ""
    if not fleet.chains:
        message = one_line(fleet.problem or fleet.waits_for) or "no chain is at work yet"
    reader = _Reader(fleet, history)
    return MapFacts(
        chains=tuple(reader.chain(number, chain) for number, chain in enumerate(fleet.chains, 1)),
        idle=tuple(
            _of_node(node, None, why=fleet.left_out.get(node.key, ""))
            for node in fleet.nodes
            if node.key not in reader.carriers
        ),
        message=message,
    )


class _Reader:
    """Reads the chains of a state."""

    def __init__(self, fleet: Fleet, history: History | None) -> None:
        self._history = history
        self._nodes = {node.key: node for node in fleet.nodes}
        self._head = next((node.key for node in fleet.nodes if node.is_head), "")
        self._is_local, self._names = fleet.fleet is None and not fleet.nodes, fleet.names
        self.carriers = Counter(stage.node for chain in fleet.chains for stage in chain.stages)

    def chain(self, number: int, chain: Chain) -> ChainFacts:
        sources = [stage.node for stage in chain.stages]
        has_failed = bool(chain.failure)
        return ChainFacts(
            title=_title(number, chain),
            failure=one_line(chain.failure or ""),
            nodes=tuple(self._stage(index, stage, has_failed) for index, stage in enumerate(chain.stages)),
            links=tuple(self._link(*ends) for ends in zip(sources, [*sources, self._head][1:], strict=True)),
        )

    def _stage(self, index: int, stage: Stage, has_failed: bool) -> NodeFacts:
        if node := self._nodes.get(stage.node):
            return _of_node(node, stage, has_failed)
        kind, state = _of_chain(has_failed) if self._is_local else ("gone", "gone")
        return NodeFacts(
            key="" if self._is_local else stage.node,
            name=f"stage {index + 1}"
            if self._is_local
            else one_line(self._names.get(stage.node) or stage.node[:8]) or "?",
            kind=kind,
            state=state,
            device=one_line(stage.device),
            layers=stage.layers,
            use=stage.use,
        )

    def _link(self, source: str, target: str) -> LinkFacts:
        flow = None
        if self._history and self.carriers[source] == 1:  # else the history is the sum of several links
            flows = self._history.link_bytes_per_second.get(source)
            flow = flows[-1] if flows else None
        if self._is_local or source == target:
            return LinkFacts(flow=flow, is_inside=True)
        for end, other in ((source, target), (target, source)):  # measured from either end
            if (node := self._nodes.get(end)) and (link := node.links.get(other)):
                return LinkFacts(link.latency_ms, link.bytes_per_second, flow)
        return LinkFacts(flow=flow)


def _title(number: int, chain: Chain) -> tuple[str, ...]:
    scheduler = chain.scheduler
    parts = [f"chain {number}"]
    rates = [request.tokens_per_second for request in chain.requests if request.tokens_per_second is not None]
    if rates:
        parts.append(f"{amounts.tokens_per_second(sum(rates))} tok/s")
    parts.append(f"{scheduler.running} running, {scheduler.waiting} waiting")
    parts.append(f"{scheduler.in_flight} in flight")
    if chain.traversal_ms is not None:
        parts.append(f"round {amounts.milliseconds(chain.traversal_ms)}")
    if scheduler.kv_total:
        parts.append(f"KV {amounts.percent(scheduler.kv_used / scheduler.kv_total)}")
    return tuple(parts)


def _of_node(node: Node, stage: Stage | None, has_failed: bool = False, why: str = "") -> NodeFacts:
    condition, device = node.condition, (stage.device if stage else "") or node.device or ""
    kind, state, details, progress = _state(node, stage, has_failed, why)
    own = next((known.memory for known in node.hardware.devices if known.name == device), None)
    return NodeFacts(
        key=node.key,
        name=one_line(node.name),
        kind=kind,
        state=state,
        details=details,
        is_head=node.is_head,
        device=one_line(device),
        layers=stage.layers if stage else None,
        progress=progress,
        memory_planned=node.memory_planned,
        memory_allowed=own or condition.memory_allowed,
        use=stage.use if stage else None,
        load=condition.load,
        temperature=condition.temperature,
        battery=condition.battery,
        on_mains=condition.on_mains,
    )


def _state(node: Node, stage: Stage | None, has_failed: bool, why: str) -> tuple[Kind, str, str, float | None]:
    if node.problem:
        return "left out", f"left out: {one_line(node.problem)}", "", None
    if work := node.work:
        progress = min(max(work.done / work.total, 0.0), 1.0) if work.total > 0 else None
        percent = "" if progress is None else f" {amounts.percent(progress)}"
        what = one_line(work.what) or "working"
        return "working", what.split()[0] + percent, what + percent, progress
    if stage is None and why:
        return "left out", f"left out: {one_line(why)}", "", None
    return (*_of_chain(has_failed), "", None) if stage else ("idle", "idle", "", None)


def _of_chain(has_failed: bool) -> tuple[Kind, str]:
    return ("idle", "stopped") if has_failed else ("serving", "serving")
