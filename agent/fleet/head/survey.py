"""What the nodes of a fleet can do with a model: each measures itself, and its ways to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic

from agent.fleet.control.messages import LinkMeasure, ModelMeasured
from agent.fleet.head.engines import engines_of
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.node_record import NodeRecord, Work
from pipeline.planning.plan import HEAD, Link, ModelSize, NodeOffer
from pipeline.running import RunOptions
from shards.errors import ConfigurationError, EdgeAgentError, StageError
from shards.manifest import Manifest
from shards.progress import Progress
from shards.runtime import EngineName

_MODEL_SECONDS = 600.0
"""The longest that a node may take to fetch a few layers and measure them."""
_LINK_SECONDS = 15.0
_NO_WAY = LinkMeasure(peer="?" * 40, latency_ms=10_000.0, bytes_per_second=1.0)
"""Stands for nodes that cannot reach each other: no plan puts them next to each other if there is another."""


class Survey:
    """Measures the nodes of a fleet, each once for as long as it is in.

    Args:
        fleet: The nodes.
        manifest: Of the model.
        options: How the model shall run.
        sizes: What the model needs on each engine that it may run on, the preferred one first.
    """

    def __init__(
        self, fleet: FleetHead, manifest: Manifest, options: RunOptions, sizes: Mapping[EngineName, ModelSize]
    ) -> None:
        self._fleet, self._manifest, self._options, self._sizes = fleet, manifest, options, sizes
        self._again: set[str] = set()
        """Nodes whose earlier measurements do not fit any more."""

    def go_on(self, progress: Progress, changed: Callable[[], None]) -> None:
        """Have nodes measured that are not, and the ways between them.

        Does not wait for the nodes, which may take minutes: `changed` is called, on any thread, when one is done. One
        that cannot be measured is marked as such.
        """
        self._measure_models(progress, changed)
        self._measure_links(progress)

    @property
    def is_complete(self) -> bool:
        """Whether every node is measured, or cannot be."""
        return all(record.costs or record.setback is not None for record in self._fleet.nodes())

    @property
    def is_due(self) -> bool:
        """Whether there is something to do that nothing tells of: a pause is over, or a node measures for too long."""
        now = monotonic()
        return any(
            record.setback.left(now) <= 0 if record.setback is not None else _is_overdue(record, now)
            for record in self._fleet.nodes()
        )

    def discard(self, node: str) -> None:
        """Have a node measured again, whatever it has kept of earlier; what was found counts until then."""
        self._again.add(node)

    def offers(self) -> tuple[NodeOffer, ...]:
        """What the measured nodes offer that can be planned with."""
        left_out = {record.key for record in self._fleet.nodes() if record.setback is not None}
        return tuple(offer for offer in self.known() if offer.id not in left_out)

    def known(self) -> tuple[NodeOffer, ...]:
        """What the measured nodes offer, also those that are left out: they may serve all the same."""
        return tuple(
            NodeOffer(
                id=record.key,
                name=record.name,
                memory=record.memory_for(costs.engine),
                costs=costs,
                size=self._sizes[costs.engine],
            )
            for record in self._fleet.nodes()
            for costs in record.costs
        )

    def links(self) -> tuple[Link, ...]:
        """The ways between them; one that was measured from one end only counts for both directions."""
        found: dict[tuple[str, str], Link] = {}
        for record in self._fleet.nodes():
            for peer, measure in record.links.items():
                found[record.key, peer] = _link(record.key, peer, measure)
        for record in self._fleet.nodes():
            for peer in record.unreachable:
                found.setdefault((record.key, peer), _link(record.key, peer, _NO_WAY))
        for (source, target), link in list(found.items()):
            found.setdefault((target, source), link.model_copy(update={"source": target, "target": source}))
        here = self._fleet.local_key  # the head is on that node's computer
        to_head = [
            link.model_copy(update={end: HEAD})
            for link in found.values()
            for end in ("source", "target")
            if getattr(link, end) == here
        ]
        return (*found.values(), *to_head)

    def _measure_models(self, progress: Progress, changed: Callable[[], None]) -> None:
        now, nodes = monotonic(), self._fleet.nodes()
        self._again &= {record.key for record in nodes}
        for record in nodes:
            if record.setback is not None and record.setback.left(now) <= 0:
                record.setback = None
            if record.setback is not None or (record.costs and record.key not in self._again):
                continue
            if _is_overdue(record, now):
                self._give_up(record)
            elif record.asked_at is None:
                try:
                    record.device, engines = self._choose(record)
                except EdgeAgentError as error:  # it stays what it is for as long as it is in
                    self._fleet.leave_out(record, str(error), final=True)
                    continue
                record.asked_at = now
                record.measuring = self._ask(record, record.device, engines, progress)
                record.measuring.add_done_callback(partial(self._take, record, changed))

    def _choose(self, record: NodeRecord) -> tuple[str, tuple[EngineName, ...]]:
        """The device of a node, and the engines to measure it on: in exact mode the preferred one of those it can run.

        Chains that mix engines are none whose answers are those of one unsplit model.

        Raises:
            ConfigurationError: it has not the device its user wants to give, or no engine for the model.
        """
        engines = engines_of(record.hello, self._sizes)
        if engines[0] == "llamacpp":
            return "CPU", engines[:1]
        try:
            device = self._fleet.device_of(record)
        except ConfigurationError:
            if "llamacpp" not in engines:
                raise
            return "CPU", ("llamacpp",)
        return device, engines[:1] if self._options.mode == "exact" else engines

    def _give_up(self, record: NodeRecord) -> None:
        """Wait no longer for what a node measures."""
        if record.measuring is not None:
            record.measuring.cancel()
        record.work = record.asked_at = None
        self._fleet.leave_out(record, f"it has not measured the model within {_MODEL_SECONDS:g} s")

    def _take(self, record: NodeRecord, changed: Callable[[], None], future: Future[ModelMeasured]) -> None:
        """A node has measured, or failed to."""
        if future.cancelled():
            return
        record.work = record.asked_at = None
        error = future.exception()
        if error is not None:
            self._fleet.leave_out(record, str(error))
        else:
            self._keep(record, future.result())
        changed()

    def _keep(self, record: NodeRecord, measured: ModelMeasured) -> None:
        """What a node says of engines that nobody asked for is ignored."""
        by_engine = {costs.engine: costs for costs in measured.profiles if costs.engine in self._sizes}
        if not by_engine:
            self._fleet.leave_out(record, "it has measured engines that it was not asked for")
            return
        record.costs, record.failures = tuple(by_engine.values()), 0
        self._again.discard(record.key)
        for engine, why in measured.failures.items():
            self._fleet.events.add(f"{record.name} does not run {engine}: {why}")

    def _ask(
        self, record: NodeRecord, device: str, engines: Sequence[EngineName], progress: Progress
    ) -> Future[ModelMeasured]:
        def tell(what: str, done: float, total: float) -> None:
            record.work = Work.told(what, done, total)
            progress(f"{record.name}: {what}", done, total)

        options = self._options
        model = self._fleet.model_ref(self._manifest)
        again = record.key in self._again
        return self._fleet.orders.measure_model(
            record.key,
            model,
            engines,
            options.mode,
            device,
            tell,
            kv_precision=options.kv_precision,
            again=again,
        )

    def _measure_links(self, progress: Progress) -> None:
        """One node after the other: two at once would share the wire."""
        nodes = self._fleet.nodes()
        for done, record in enumerate(nodes):
            peers = self._unmeasured(record, nodes)
            if peers:
                progress("measuring links", done, len(nodes))
                future = self._fleet.orders.measure_links(record.key, peers)
                try:
                    found = {link.peer: link for link in future.result(_LINK_SECONDS)}
                    record.links = record.links | found  # a new one: other threads may be reading the old one
                    record.unreachable = record.unreachable | (set(peers) - found.keys())
                except (TimeoutError, StageError) as error:
                    future.cancel()
                    self._fleet.events.add(
                        f"the links of {record.name} are not known: {str(error) or 'no answer in time'}"
                    )
        progress("measuring links", len(nodes), len(nodes))

    def _unmeasured(self, record: NodeRecord, nodes: Sequence[NodeRecord]) -> list[str]:
        return [
            other.key
            for other in nodes
            if other.key != record.key
            and other.key not in record.links.keys() | record.unreachable
            and record.key not in other.links
        ]


def _is_overdue(record: NodeRecord, now: float) -> bool:
    return record.asked_at is not None and now - record.asked_at > _MODEL_SECONDS


def _link(source: str, target: str, measure: LinkMeasure) -> Link:
    return Link(
        source=source,
        target=target,
        latency_ms=measure.latency_ms,
        bytes_per_second=measure.bytes_per_second,
    )
