"""What the nodes of a fleet can do with a model: each measures itself, and its ways to the others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

from agent.fleet.control.messages import ModelRef
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.node_record import NodeRecord
from pipeline.planning.plan import HEAD, Link, NodeOffer
from pipeline.running import RunOptions
from shards.errors import EdgeAgentError, StageError
from shards.manifest import Manifest
from shards.profile import CostProfile
from shards.progress import Progress

_MODEL_SECONDS = 600.0
"""The longest that a node may take to fetch a few layers and measure them."""
_LINK_SECONDS = 30.0


class Survey:
    """Measures the nodes of a fleet, each once for as long as it is in.

    Args:
        fleet: The nodes.
        manifest: Of the model.
        options: How the model shall run.
    """

    def __init__(self, fleet: FleetHead, manifest: Manifest, options: RunOptions) -> None:
        self._fleet, self._manifest, self._options = fleet, manifest, options
        self._lock = threading.Lock()

    def complete(self, progress: Progress) -> None:
        """Measure what is not measured yet, and wait for it. A node that cannot be measured is marked as such."""
        with self._lock:
            self._measure_models(progress)
            self._measure_links(progress)

    def offers(self) -> tuple[NodeOffer, ...]:
        """What the measured nodes offer."""
        return tuple(
            NodeOffer(id=r.key, name=r.name, memory=r.memory, costs=r.costs)
            for r in self._fleet.nodes()
            if r.costs is not None and r.problem is None
        )

    def links(self) -> tuple[Link, ...]:
        """The ways between them; one that was measured from one end only counts for both directions."""
        found: dict[tuple[str, str], Link] = {}
        for record in self._fleet.nodes():
            for peer, measure in record.links.items():
                for source, target in ((record.key, peer), (peer, record.key)):
                    if source == record.key or (source, target) not in found:
                        found[source, target] = Link(
                            source=source,
                            target=target,
                            latency_ms=measure.latency_ms,
                            bytes_per_second=measure.bytes_per_second,
                        )
        here = self._fleet.local_key  # the head is on that node's computer
        to_head = [
            link.model_copy(update={end: HEAD})
            for link in found.values()
            for end in ("source", "target")
            if getattr(link, end) == here
        ]
        return (*found.values(), *to_head)

    def _measure_models(self, progress: Progress) -> None:
        todo = [record for record in self._fleet.nodes() if record.costs is None and record.problem is None]
        asked: list[tuple[NodeRecord, Future[CostProfile]]] = []
        for record in todo:
            try:
                record.device = self._fleet.device_of(record)
            except EdgeAgentError as error:
                record.problem = str(error)
                continue
            asked.append((record, self._ask(record, record.device, progress)))
        wait([future for _, future in asked], _MODEL_SECONDS)
        for record, future in asked:
            record.work = None
            try:
                record.costs = future.result(timeout=0)
            except TimeoutError:
                record.problem = f"it has not measured the model within {_MODEL_SECONDS:g} s"
            except StageError as error:
                record.problem = str(error)
            if record.problem is not None:
                self._fleet.events.add(f"{record.name} cannot be planned with: {record.problem}")

    def _ask(self, record: NodeRecord, device: str, progress: Progress) -> Future[CostProfile]:
        def tell(what: str, done: float, total: float) -> None:
            record.work = what
            progress(f"{record.name}: {what}", done, total)

        options = self._options
        model = ModelRef(
            package_id=self._manifest.package_id,
            name=self._manifest.facts.name,
            holders=self._fleet.holders(self._manifest.package_id),
        )
        return self._fleet.orders.measure_model(record.key, model, options.engine, options.mode, device, tell)

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
                except (TimeoutError, StageError) as error:
                    self._fleet.events.add(f"the links of {record.name} are not known: {error or 'no answer'}")
        progress("measuring links", len(nodes), len(nodes))

    def _unmeasured(self, record: NodeRecord, nodes: Sequence[NodeRecord]) -> list[str]:
        return [
            other.key
            for other in nodes
            if other.key != record.key and other.key not in record.links and record.key not in other.links
        ]
