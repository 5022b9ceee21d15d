"""A model served by a fleet: measured, planned, opened, and planned again when the fleet changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from agent.fleet.head.chain_opener import ChainOpener
from agent.fleet.head.drift import DriftWatch, Look
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.head.survey import Survey
from pipeline.head import Head
from pipeline.planning.plan import ChainPlan, ModelSize, Plan, Wish
from pipeline.planning.planner import plan as make_plan
from pipeline.replicas import Replicas
from pipeline.running import Copy, RunOptions
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError, EdgeAgentError, StageError
from shards.progress import Progress, silent

_log = logging.getLogger(__name__)

WORTHWHILE = 1.10
"""What a plan over more nodes must promise, as a multiple of the one at work, for the model to be moved."""

_SETTLE_SECONDS = 1.0
"""After a change: nodes that come or go together are planned for together."""
_LOOK_SECONDS = 10.0
"""How often the chains are looked at when nothing is told."""
_DRAIN_SECONDS = 600.0
"""The longest that old chains go on beside new ones."""
_CLOSE_SECONDS = 1.0
_RETRY_SECONDS = 10.0
"""After a plan that could not be carried out."""


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A copy, and the plan it follows."""

    copy: Copy
    plan: ChainPlan


class FleetModel:
    """A model package on a fleet; see agent.served.Served and FleetControl. A context manager.

    It plans, and opens what it plans, on a thread of its own; requests wait until the first plan is at work.

    Args:
        package: The model package, here on the head's PC.
        options: How to run it; stages and split are the planner's.
        fleet_options: What it is planned for.
        fleet: The nodes.
        progress: Told how the first plan comes to life.

    Raises:
        PackageError: the package cannot be read.
        ConfigurationError: the model has fewer layers than stages are wanted.
    """

    def __init__(
        self,
        package: Path,
        options: RunOptions,
        fleet_options: FleetOptions,
        fleet: FleetHead,
        progress: Progress = silent,
    ) -> None:
        self.manifest = manifests.read(package)
        depth, stages = self.manifest.facts.layers, fleet_options.wish.stages
        if stages is not None and stages > depth:
            what = f"{depth} layers cannot be split into {stages} stages"
            raise ConfigurationError(what, where="--stages", hint=f"Ask for 1 to {depth} stages.")
        self.tokenizer = Tokenizer.load(package)
        self.head = Replicas(fleet.set_busy)
        self._wish, self._fleet = fleet_options.wish, fleet
        # exact mode keeps keys and values in f32; fast mode in u8 with a scale and an offset (f32) a head
        kv_bytes = 4.0 if options.mode == "exact" else 1.0 + 8 / self.manifest.facts.head_size
        self._size = ModelSize.of(self.manifest, kv_bytes)
        self._survey = Survey(fleet, self.manifest, options)
        self._opener = ChainOpener(
            package, self.manifest, options, self._size, fleet, self._survey, fleet_options.interface
        )
        self._min_nodes, self._progress = fleet_options.min_nodes, progress
        self._drift = DriftWatch()
        self._running: list[_Running] = []
        self._retired: list[_Running] = []
        self._plan: Plan | None = None
        self._lock = threading.Lock()
        """Held to change what runs."""
        self.ready = threading.Event()
        """Set once the first plan is at work."""
        self.problem: str | None = None
        """Why what is at work is not what was planned last."""
        self.waits_for = ""
        """What the first plan waits for."""
        self._is_postponed = False
        """A plan waits for a moment in which nobody asks."""
        self._closing = threading.Event()
        self._changed = threading.Event()
        self._changed.set()
        fleet.on_change(self._changed.set)
        self._thread = threading.Thread(target=self._follow, name="planning", daemon=True)
        self._thread.start()

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The chains that take requests now."""
        return tuple(running.copy for running in self._running)

    def close(self) -> None:
        """End every chain."""
        self._closing.set()
        self._changed.set()
        self.head.give_up(StageError("the server is shutting down"))
        with self._lock:
            running, self._running, self._retired = self._running + self._retired, [], []
        _in_parallel([one.copy.close for one in running])
        for record in self._fleet.nodes():  # what is being measured or opened need not be waited for
            self._fleet.orders.lose(record.key, "the server is shutting down")
        self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> FleetModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What those who look after the fleet ask

    def describe(self) -> dict[str, Any]:
        """See FleetControl."""
        plan = self._plan
        return self._fleet.describe() | {
            "wish": self._wish.model_dump(),
            "plan": None if plan is None else plan.model_dump(),
            "problem": self.problem,
            "waits_for": "" if self.ready.is_set() else self.waits_for,
        }

    def approve(self, code: str) -> str:
        """See FleetControl."""
        return self._fleet.approve(code)

    def forget(self, node: str) -> str:
        """See FleetControl."""
        return self._fleet.forget(node)

    def renew_token(self) -> None:
        """See FleetControl."""
        self._fleet.renew_token()

    def plan(self, changes: dict[str, Any]) -> dict[str, Any]:
        """See FleetControl."""
        wish = self._wish.model_copy(update=changes)
        nodes = {record.key: record.name for record in self._fleet.nodes()}
        return {
            "wish": wish.model_dump(),
            "nodes": nodes,
            "unmeasured": [r.name for r in self._fleet.nodes() if r.costs is None],
            "plan": self._planned(wish).model_dump(),
        }

    # Planning

    def _planned(self, wish: Wish | None = None) -> Plan:
        return make_plan(self._size, self._survey.offers(), self._survey.links(), wish or self._wish)

    def _follow(self) -> None:
        """Plan again whenever the fleet has changed, or does not keep what it promised, until the end."""
        retry: float | None = None
        while not self._closing.is_set():
            is_told = self._changed.wait(retry or _LOOK_SECONDS)
            try:
                lost, drifted = self._drop_failed(), self._has_drifted()
                if not (is_told or retry or lost or drifted or self._is_postponed):
                    continue
                self._closing.wait(_SETTLE_SECONDS if self.ready.is_set() else 0)
                self._changed.clear()
                retry = None
                self._replan()
            except EdgeAgentError as error:
                if str(error) != self.problem:
                    self._fleet.events.add(f"no plan: {error}")
                self.problem = str(error)
                if self.ready.is_set() and not self._running:
                    self.head.give_up(StageError(error.what, where=error.where, hint=error.hint))
                retry = _RETRY_SECONDS
            except Exception as error:  # a defect must not end planning
                _log.exception("planning has failed")
                self.problem = f"planning has failed ({error!r})"
                self._fleet.events.add(self.problem)
                retry = _RETRY_SECONDS

    def _replan(self) -> None:
        nodes = self._fleet.nodes()
        if all(record.key != self._fleet.local_key for record in nodes):
            return  # from this PC's node, which is on its way, the others fetch the weights
        count = len(nodes)
        if not self.ready.is_set() and count < self._min_nodes:
            self.waits_for = f"waiting for {self._min_nodes} PCs, {count} of them {'is' if count == 1 else 'are'} here"
            return
        self.waits_for = "measuring"
        progress = silent if self.ready.is_set() else self._progress
        self._survey.go_on(progress, self._changed.set)
        if self._closing.is_set() or not (self.ready.is_set() or self._survey.is_complete):
            return  # the first plan is made with all that are there; later ones wait for nobody
        plan = self._planned()
        self._is_postponed = False
        if self._running:
            # as things are now: what was predicted once may not hold any more
            rate = self._opener.rate([one.plan for one in self._running])
            if rate is None or plan.prediction.many_users <= WORTHWHILE * rate:
                self.problem = None
                return
        if self._adopt(plan, progress):
            self.problem = None
            self.ready.set()

    def _has_drifted(self) -> bool:
        """Whether nodes have to be measured again; while tokens flow, that would measure the flow."""
        if self._fleet.is_busy:
            return False
        nodes: list[str] = []
        for one in self._running:
            snapshot, times = one.copy.head.snapshot(), self._opener.stage_times(one.plan)
            if snapshot.stages and times is not None:
                look = Look(
                    snapshot.scheduler.steps,
                    snapshot.scheduler.rows,
                    tuple(stage.compute / 1e3 for stage in snapshot.stages),
                )
                names = [stage.node for stage in one.plan.stages]
                nodes += self._drift.look(one.copy, names, look, times, monotonic())
        self._drift.forget([one.copy for one in self._running])
        for node in nodes:
            self._survey.discard(node)
            self._fleet.events.add(f"{self._fleet.name_of(node)} is not as fast, or slow, as it was: measured again")
        return bool(nodes)

    def _drop_failed(self) -> bool:
        """Take chains that have failed out of service; whether there were any."""
        failures = {one: one.copy.head.failure for one in self._running}
        failed = [one for one, failure in failures.items() if failure is not None]
        if not failed:
            return False
        with self._lock:
            self._running = [one for one in self._running if one not in failed]
        self._plan = None
        self.head.replace(_shares(self._running))
        self._fleet.events.add(f"{len(failed)} of the chains ended: {failures[failed[0]]}")
        _in_parallel([one.copy.close for one in failed])
        return True

    def _adopt(self, plan: Plan, progress: Progress) -> bool:
        """Open the chains of a plan; when they are there they take the requests, and the old ones run out.

        Chains at work that the plan has as well are kept. Where there is no room for old and new together, it is put
        off until nobody waits for an answer. Returns whether the plan is at work.
        """
        kept = self._kept(plan)
        old = [one for one in self._running if one not in kept.values()]
        if old and not self._fits_beside(plan, old):
            if self._fleet.is_busy:
                self._is_postponed = True
                return False
            self.head.replace(_shares(kept.values()))  # from now on requests wait
            self._retire(old)
            old = []
        opened = self._open([chain for chain in plan.chains if chain not in kept], progress)
        copies = [_Running(kept[chain].copy if chain in kept else opened[chain], chain) for chain in plan.chains]
        with self._lock:
            closing = self._closing.is_set()
            if not closing:
                self._running, self._plan, self._retired = copies, plan, self._retired + old
        if closing:
            _in_parallel([copy.close for copy in opened.values()])
            return False
        self.head.replace(_shares(copies))
        for copy in opened.values():
            copy.chain.on_failure(partial(self._hear_of_failure, copy))
        self._fleet.events.add(f"serving with {_outline(plan, self._fleet.name_of)}")
        if old:
            threading.Thread(target=self._retire, args=(old,), name="draining", daemon=True).start()
        return True

    def _hear_of_failure(self, copy: Copy, _: StageError) -> None:
        if len(self._running) > 1:
            self.head.remove(copy.head)
        self._changed.set()

    def _kept(self, plan: Plan) -> dict[ChainPlan, _Running]:
        """The chains of a plan that are at work already."""
        free, kept = list(self._running), dict[ChainPlan, _Running]()
        for chain in plan.chains:
            for one in free:
                if _places(one.plan) == _places(chain) and one.plan.kv_tokens >= chain.kv_tokens:
                    kept[chain] = one
                    free.remove(one)
                    break
        return kept

    def _open(self, chains: Sequence[ChainPlan], progress: Progress) -> dict[ChainPlan, Copy]:
        opened: dict[ChainPlan, Copy] = {}

        def open_one(chain: ChainPlan) -> None:
            opened[chain] = self._opener.open(chain, progress)

        errors = _in_parallel([partial(open_one, chain) for chain in chains])
        if errors:
            _in_parallel([copy.close for copy in opened.values()])
            raise errors[0]
        return opened

    def _retire(self, old: Sequence[_Running]) -> None:
        for one in old:
            self.head.remove(one.copy.head)
        for one in old:
            self.head.drain(one.copy.head, 0.0 if self._closing.is_set() else _DRAIN_SECONDS)
        with self._lock:
            self._running = [one for one in self._running if one not in old]
            self._retired = [one for one in self._retired if one not in old]
        _in_parallel([one.copy.close for one in old])

    def _fits_beside(self, plan: Plan, old: Sequence[_Running]) -> bool:
        """Whether each node has room for what it carries now and what it shall carry, at the same time."""
        taken: dict[str, int] = {}
        for chain in (*plan.chains, *(one.plan for one in (*old, *self._retired))):
            for stage in chain.stages:
                taken[stage.node] = taken.get(stage.node, 0) + stage.memory
        allowed = {record.key: record.memory for record in self._fleet.nodes()}
        return all(memory <= allowed.get(node, 0) for node, memory in taken.items())


def _shares(running: Iterable[_Running]) -> list[tuple[Head, float]]:
    return [(one.copy.head, max(one.plan.prediction.many_users, 1e-9)) for one in running]


def _places(chain: ChainPlan) -> list[tuple[str, int, int]]:
    return [(stage.node, stage.first_layer, stage.end_layer) for stage in chain.stages]


def _outline(plan: Plan, name_of: Callable[[str], str]) -> str:
    """A plan in a line."""
    chains = [
        " - ".join(f"{name_of(stage.node)} {stage.first_layer}-{stage.end_layer - 1}" for stage in chain.stages)
        for chain in plan.chains
    ]
    return "; ".join(chains)


def _in_parallel(jobs: Sequence[Callable[[], object]]) -> list[Exception]:
    """Do all; what went wrong."""
    if not jobs:
        return []
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
    errors = [future.exception() for future in futures]
    return [error for error in errors if isinstance(error, Exception)]
