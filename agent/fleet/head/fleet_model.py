"""A model served by a fleet: measured, planned, opened, and planned again when the fleet changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from agent.fleet.control.messages import Examined
from agent.fleet.head import at_work
from agent.fleet.head.at_work import Held, Running, in_parallel, outline, shares
from agent.fleet.head.chain_opener import ChainOpener
from agent.fleet.head.drift import DriftWatch
from agent.fleet.head.engines import engine_sizes
from agent.fleet.head.fleet_drafts import FleetDrafts
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.head.survey import Survey
from agent.fleet.head.wishes import Wishes, words
from pipeline.planning.plan import Plan, Wish
from pipeline.planning.planner import plan as make_plan
from pipeline.replicas import Replicas
from pipeline.running import Copy, RunOptions
from pipeline.speculation.draft_choice import DraftChoice
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError, EdgeAgentError, RequestError, StageError
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

_NO_OWN_NODE = "waiting for this PC's own node"
_POSTPONED = "a new plan waits until nobody asks: there is no room for the old chains and the new ones at once"


class FleetModel:
    """A model package on a fleet; see agent.served.Served and FleetControl. A context manager.

    It plans, and opens what it plans, on a thread of its own; requests wait until the first plan is at work.

    Args:
        package: The model package, here on the head's PC.
        options: How to run it; stages and split are the planner's. Nodes run its engine or llama.cpp, as is best.
        fleet_options: What it is planned for.
        fleet: The nodes.
        progress: Told how the first plan comes to life.

    Raises:
        PackageError: the package, or that of its draft, cannot be read.
        ConfigurationError: the model has fewer layers than stages are wanted, or the draft does not suit it.
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
        self.manifest.check_whole_vocabulary(where=package)
        depth, stages = self.manifest.facts.layers, fleet_options.wish.stages
        if stages is not None and stages > depth:
            what = f"{depth} layers cannot be split into {stages} stages"
            raise ConfigurationError(what, where="--stages", hint=f"Ask for 1 to {depth} stages.")
        self.tokenizer = Tokenizer.load(package)
        choice = DraftChoice.of(options.draft, package, self.manifest, self.tokenizer)
        self.head = Replicas(self._set_busy, options.max_waiting)
        self._fleet = fleet
        self._wishes = Wishes(fleet_options.wish, self.manifest.facts.context_length)
        sizes = engine_sizes(self.manifest, options)
        self._size = next(iter(sizes.values()))
        self._survey = Survey(fleet, self.manifest, options, sizes)
        where = fleet_options.interface
        drafts = FleetDrafts(choice, fleet_options.draft_node, options, fleet, self._survey, where)
        self._opener = ChainOpener(package, self.manifest, options, self._size, fleet, self._survey, where, drafts)
        self._min_nodes, self._progress = fleet_options.min_nodes, progress
        self._drift = DriftWatch()
        self._running: list[Running] = []
        self._retired: list[Running] = []
        self._plan: Plan | None = None
        self._left_out: dict[str, str] = {}
        """Why nodes carry nothing, by their keys; replaced as a whole."""
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

    @property
    def retiring(self) -> tuple[Copy, ...]:
        """See Served."""
        return tuple(retired.copy for retired in self._retired)

    def close(self) -> None:
        """End every chain."""
        self._closing.set()
        self._changed.set()
        self.head.give_up(StageError("the server is shutting down"))
        with self._lock:
            running, self._running, self._retired = self._running + self._retired, [], []
        in_parallel([one.copy.close for one in running])
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
        plan, planned, told = self._plan, Held.by(self._running).taken, self._fleet.describe()
        nodes = [node | {"memory_planned": planned[node["key"]]} for node in told["nodes"]]
        here = {node["key"] for node in nodes if node["problem"] is None}
        left_out, drafts = self._left_out.items(), at_work.drafts(self._running)
        return told | {
            "nodes": nodes,
            "parked": self.head.parked,
            "wish": self._wishes.current.model_dump(),
            "plan": None if plan is None else plan.model_dump(),
            "carriers": {key: self._fleet.name_of(key) for key in at_work.carriers(self._running)},
            "left_out": {node: at_work.and_drafts(node, why, drafts) for node, why in left_out if node in here},
            "problem": self.problem,
            "waits_for": "" if self.ready.is_set() else self.waits_for,
        }

    def name_of(self, node: str) -> str:
        """See FleetControl."""
        return self._fleet.name_of(node)

    def approve(self, code: str) -> str:
        """See FleetControl."""
        return self._fleet.approve(code)

    def refuse(self, code: str) -> str:
        """See FleetControl."""
        return self._fleet.refuse(code)

    def forget(self, node: str) -> str:
        """See FleetControl."""
        return self._fleet.forget(node)

    def renew_token(self) -> None:
        """See FleetControl."""
        self._fleet.renew_token()

    def plan(self, changes: dict[str, Any]) -> dict[str, Any]:
        """See FleetControl."""
        wish = self._wishes.changed(changes)
        plan, running = self._asked(wish), self._running
        kept = at_work.kept(plan, running)
        return {
            "wish": wish.model_dump(),
            "nodes": {record.key: record.name for record in self._fleet.nodes()},
            "unmeasured": [record.name for record in self._fleet.nodes() if not record.costs],
            "plan": plan.model_dump(),
            "current": self._opener.rate([one.plan for one in running], wish) if running else None,
            "is_current": len(kept) == len(plan.chains) == len(running),
        }

    def apply(self, changes: dict[str, Any]) -> dict[str, Any]:
        """See FleetControl."""
        wish = self._wishes.change(changes, self._asked)  # the planning thread does the rest
        self._fleet.events.add(f"planned for from now on: {words(wish)}")
        self._changed.set()
        return wish.model_dump()

    def node(self, node: str) -> tuple[dict[str, Any], Future[Examined]]:
        """See FleetControl."""
        record = self._fleet.find(node)
        told = self._fleet.describe_node(record) | {"memory_planned": Held.by(self._running).taken[record.key]}
        return {"node": told, "milliseconds": told["milliseconds"]}, self._fleet.orders.examine(record.key)

    def _asked(self, wish: Wish) -> Plan:
        """A plan that somebody asks for; raises CapacityError, RequestError or StageError if there is none."""
        if not (self._survey.offers() or self._survey.is_complete):
            raise StageError("no node is measured yet", where="plan", hint="Ask again in a moment.")
        try:
            return self._planned(wish)
        except ConfigurationError as error:
            raise RequestError(error.what, where=error.where, hint=error.hint) from None

    # Planning

    def _planned(self, wish: Wish) -> Plan:
        return make_plan(self._size, self._survey.offers(), self._survey.links(), wish)

    def _follow(self) -> None:
        """Plan again whenever the fleet has changed, or does not keep what it promised, until the end."""
        retry: float | None = None
        while not self._closing.is_set():
            is_told = self._changed.wait(retry or _LOOK_SECONDS)
            try:
                lost, drifted = self._drop_failed(), self._has_drifted()
                if not (is_told or retry or lost or drifted or self._is_postponed or self._survey.is_due):
                    continue
                self._closing.wait(_SETTLE_SECONDS if self.ready.is_set() else 0)
                self._changed.clear()
                retry = None
                self._drop_failed()  # again: what told of it may have been faster than the chain's own head
                self._replan()
            except EdgeAgentError as error:
                self._fail(error)
                retry = _RETRY_SECONDS
            except Exception as error:  # a defect must not end planning
                _log.exception("planning has failed")
                self.problem = f"planning has failed ({error!r})"
                self._fleet.events.add(self.problem)
                retry = _RETRY_SECONDS

    def _fail(self, error: EdgeAgentError) -> None:
        """There is no plan, or it could not be carried out."""
        if str(error) != self.problem:
            self._fleet.events.add(f"no plan: {error}")
        self.problem, self._left_out = str(error), {}
        # where something has changed meanwhile, as when a node is left out now, the next plan may serve
        if self.ready.is_set() and not self._running and not self._changed.is_set():
            self.head.give_up(StageError(error.what, where=error.where, hint=error.hint))

    def _replan(self) -> None:
        nodes = self._fleet.nodes()
        if all(record.key != self._fleet.local_key for record in nodes):
            # from this PC's node, which is on its way, the others fetch the weights
            self.problem = _NO_OWN_NODE if self.ready.is_set() else None
            return
        count = len(nodes)
        if not self.ready.is_set() and count < self._min_nodes:
            self.waits_for = f"waiting for {self._min_nodes} PCs, {count} of them {'is' if count == 1 else 'are'} here"
            return
        self.waits_for = "measuring"
        progress = silent if self.ready.is_set() else self._progress
        self._survey.go_on(progress, self._changed.set)
        if self._closing.is_set() or not (self.ready.is_set() or self._survey.is_complete):
            return  # the first plan is made with all that are there; later ones wait for nobody
        wish = self._wishes.current  # once: another may come at any time
        if not self.ready.is_set():
            self._wishes.settled = wish  # there is none to go back to
        self._is_postponed = False
        try:
            self._carry_out(wish, progress)
        except EdgeAgentError as error:
            if not self._wishes.take_back(wish):
                raise
            now = words(self._wishes.current)
            self._fleet.events.add(f"{words(wish)}: that did not work ({error}); planned for now: {now}")
            self._changed.set()

    def _carry_out(self, wish: Wish, progress: Progress) -> None:
        plan = self._planned(wish)
        if self._running and wish is self._wishes.settled:
            # as things are now: what was predicted once may not hold any more
            rate = self._opener.rate([one.plan for one in self._running])
            if rate is None or plan.prediction.many_users <= WORTHWHILE * rate:
                self.problem, self._left_out = None, at_work.left_out(plan, self._running, rate)
                self._opener.settle_drafts(self._running, self._retired, self._changed.set)
                return
        if self._adopt(plan, progress, is_settled=wish is self._wishes.settled):
            self.problem, self._wishes.settled, self._left_out = None, wish, at_work.left_out(plan, self._running)
            self.ready.set()
        elif self._is_postponed:
            self.problem = _POSTPONED

    def _has_drifted(self) -> bool:
        """Whether nodes have to be measured again; while tokens flow, that would measure the flow."""
        if self._fleet.is_busy:
            return False
        nodes = at_work.drifted(self._drift, self._running, self._opener.stage_times)
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
        self.head.replace(shares(self._running))
        self._fleet.events.add(f"{len(failed)} of the chains ended: {failures[failed[0]]}")
        in_parallel([one.copy.close for one in failed])
        return True

    def _adopt(self, plan: Plan, progress: Progress, *, is_settled: bool) -> bool:
        """Open the chains of a plan; when they are there they take the requests, and the old ones run out.

        Chains at work that the plan has as well are kept. Where there is no room for old and new together, it is put
        off until nobody waits for an answer. Returns whether the plan is at work.

        Args:
            plan: The plan.
            progress: Told how it goes.
            is_settled: Its wish has worked before, so that it is the nodes' fault if it does not now.
        """
        kept = at_work.kept(plan, self._running)
        old = [one for one in self._running if one not in kept.values()]
        if old and not self._fits_beside(plan, old):
            if self._fleet.is_busy:
                self._is_postponed = True
                return False
            if is_settled and self._leave_out_doubtful(plan):
                return False
            self._plan = None
            self.head.replace(shares(kept.values()))  # from now on requests wait
            self._retire(old)
            old = []
        opened = self._opener.open_all(plan, kept, (*old, *self._retired), progress, blame=is_settled)
        copies = [kept[chain].following(chain) if chain in kept else opened[chain] for chain in plan.chains]
        with self._lock:
            closing = self._closing.is_set()
            if not closing:
                self._running, self._plan, self._retired = copies, plan, self._retired + old
        if closing:
            in_parallel([one.copy.close for one in opened.values()])
            return False
        self.head.replace(shares(copies))
        for one in opened.values():
            one.copy.chain.on_failure(partial(self._hear_of_failure, one.copy))
        self._fleet.events.add(f"serving with {outline(plan, self._fleet.name_of)}")
        if old:
            threading.Thread(target=self._retire, args=(old,), name="draining", daemon=True).start()
        return True

    def _leave_out_doubtful(self, plan: Plan) -> bool:
        """Leave out nodes that failed last time and would have to be tried in place of what works; whether any were."""
        planned = at_work.memory(plan.chains)
        doubtful = [record for record in self._fleet.nodes() if record.failures and record.key in planned]
        for record in doubtful:
            self._fleet.leave_out(record, "it has failed, and there is no room to try it beside what is at work")
        return bool(doubtful)

    def _set_busy(self, busy: bool) -> None:
        self._fleet.set_busy(busy)
        if not busy and self._is_postponed:
            self._changed.set()

    def _hear_of_failure(self, copy: Copy, _: StageError) -> None:
        if len(self._running) > 1:
            self.head.remove(copy.head)
        self._changed.set()

    def _retire(self, old: Sequence[Running]) -> None:
        for one in old:
            self.head.remove(one.copy.head)
        for one in old:
            self.head.drain(one.copy.head, 0.0 if self._closing.is_set() else _DRAIN_SECONDS)
        with self._lock:
            self._running = [one for one in self._running if one not in old]
            self._retired = [one for one in self._retired if one not in old]
        in_parallel([one.copy.close for one in old])
        self._changed.set()  # there may be room for a draft where they were

    def _fits_beside(self, plan: Plan, old: Sequence[Running]) -> bool:
        """Whether each node has room for what it carries now and what it shall carry, at the same time."""
        staying = [one for one in self._running if one not in old]
        held = at_work.together(plan, staying, (*old, *self._retired), self._fleet.local_key)
        return at_work.fits(held.taken, {record.key: record.memory for record in self._fleet.nodes()})
