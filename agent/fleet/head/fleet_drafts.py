"""The draft models of a fleet's chains: on idle nodes, or on the head's PC."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from agent.fleet.head import at_work
from agent.fleet.head.at_work import Held, Running
from agent.fleet.head.draft_move import DraftMove
from agent.fleet.head.draft_node import Candidate, Choice, choose
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.node_record import NodeRecord, Work
from agent.fleet.head.placed_draft import PlacedDraft
from agent.fleet.head.survey import Survey
from pipeline.control import FromStage, Ready, Start
from pipeline.control import Progress as StageProgress
from pipeline.planning.plan import HEAD, ChainPlan, ModelSize
from pipeline.planning.prediction import UNKNOWN_LATENCY_MS
from pipeline.planning.room import Reserve
from pipeline.running import RunOptions
from pipeline.speculation.draft_choice import DraftChoice, beside_lookup
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.draft_run import DraftRun, DraftSite
from pipeline.speculation.drafter import Drafter
from pipeline.stages import Heard, Stage
from shards import manifest as manifests
from shards.errors import EdgeAgentError, StageError
from shards.manifest import Manifest
from shards.progress import Progress, silent
from shards.runtime import EngineName, kind_of

_log = logging.getLogger(__name__)

_ENGINE: EngineName = "openvino-paged"
"""What runs drafts: several texts share its steps."""


class FleetDrafts:
    """Finds a node for the draft of each chain, and opens it there, on any thread; the rest is the planning thread's.

    Args:
        choice: What guesses how answers go on.
        wanted: Where the draft model shall run; see `draft_node.choose`.
        options: How the model that is guessed for is run.
        fleet: The nodes; those that carry a draft fetch its package from this PC's.
        survey: What they can do.
        interface: What the head and the drafts listen on, as for chains.

    Raises:
        PackageError: the draft's package cannot be read, or is not for OpenVINO.
    """

    def __init__(
        self, choice: DraftChoice, wanted: str, options: RunOptions, fleet: FleetHead, survey: Survey, interface: str
    ) -> None:
        self._choice, self._wanted, self._options = choice, wanted, options
        self._fleet, self._survey, self._interface = fleet, survey, interface
        self._manifest: Manifest | None = None
        self._size: ModelSize | None = None
        self._move: DraftMove | None = None
        """The latest one."""
        if choice.package is not None:
            self._manifest = manifests.read(choice.package)
            self._size = ModelSize.of(self._manifest, "fast", _ENGINE)
            fleet.lend(choice.package)

    def place(self, plans: Sequence[ChainPlan], carriers: Iterable[str], held: Held) -> list[str]:
        """A node for the draft of each chain; that of a chain without one means nothing.

        Args:
            plans: Of the chains that are to be opened.
            carriers: Nodes that carry layers in the newest plan.
            held: What is taken on the nodes when the chains are there.
        """
        places = []
        for plan in plans:
            node, why = self._choose(plan, carriers, held)
            if why is not None:
                self._fleet.events.add(f"the draft {self._choice.name} runs on this PC, not where it shall: {why}")
            held = held.with_draft(node, self._bytes(plan))
            places.append(node)
        return places

    def open(self, plan: ChainPlan, node: str, progress: Progress) -> tuple[Drafter | None, PlacedDraft | None]:
        """The drafter of a chain, and its model, if one is wanted.

        A model that does not load on another PC is tried on this one; where it does not load here, it is off.

        Args:
            plan: Of the chain.
            node: Where its model runs.
            progress: Told how loading goes.

        Raises:
            PackageError: the draft's package cannot be read any more.
        """
        if self._manifest is None:
            return self._choice.open(self._run(plan, DraftSite())), None
        draft = PlacedDraft(self._bytes(plan), self._load(plan, node, progress))
        return beside_lookup(draft), draft

    def make_way(self, drafts: Iterable[PlacedDraft]) -> None:
        """End drafts, for layers; their chains go on without them."""
        for draft in drafts:
            draft.change(self._choice.not_loaded("its node carries layers now"))

    def settle(self, running: Sequence[Running], held: Held, moved: Callable[[], None]) -> None:
        """Have a draft that is on the head's PC, or off, move to a node without layers if there is one by now.

        Does not wait: one moves at a time, and `moved` is called, on another thread, when it has.

        Args:
            running: The chains at work.
            held: What is taken on the nodes.
            moved: See above.
        """
        if self._manifest is None or (self._move is not None and self._move.is_on):
            return
        here, carriers = self._fleet.local_key, at_work.memory(one.plan for one in running)
        for one in running:
            if one.draft is None or (one.draft.memory and one.draft.node != here):
                continue
            node = self._choose(one.plan, carriers, held).node
            if node != here:
                self._move = DraftMove(partial(self._carry_over, one.draft, one.plan, node, moved))
                return

    def halt(self) -> None:
        """Whatever draft is moving stays where it was; what it took elsewhere is free when this returns."""
        if self._move is not None:
            self._move.halt()

    def _carry_over(
        self, draft: PlacedDraft, plan: ChainPlan, node: str, moved: Callable[[], None], move: DraftMove
    ) -> None:
        where = self._fleet.name_of(node)
        try:
            model = self._start(plan, node, silent, move)
        except EdgeAgentError as error:
            if not move.is_halted:
                self._fleet.events.add(f"the draft {self._choice.name} did not load on {where}: {error}")
            return
        if move.is_halted:
            model.close()
        elif draft.change(model):
            self._fleet.events.add(f"the draft {self._choice.name} runs on {where} now")
            moved()

    def _load(self, plan: ChainPlan, node: str, progress: Progress) -> Drafter:
        here = self._fleet.local_key
        try:
            return self._start(plan, node, progress)
        except StageError as error:
            _log.warning("the draft %s did not load: %s", self._choice.name, error)
            if node == here:
                return self._choice.not_loaded(str(error))
            where = self._fleet.name_of(node)
            self._fleet.events.add(f"the draft {self._choice.name} did not load on {where}: {error}")
        return self._load(plan, here, progress)

    def _start(self, plan: ChainPlan, node: str, progress: Progress, move: DraftMove | None = None) -> DraftModel:
        assert self._choice.package is not None and self._manifest is not None
        run = self._run(plan, self._site(node, self._manifest, move))
        return DraftModel.start(self._choice.package, self._choice.vocabulary, run, progress)

    def _choose(self, plan: ChainPlan, carriers: Iterable[str], held: Held) -> Choice:
        if self._manifest is None:
            return Choice(self._fleet.local_key)
        step_ms = 1e3 / max(plan.prediction.one_user, 1e-9)
        nodes = self._candidates(set(carriers), held)
        return choose(self._wanted, self._fleet.local_key, nodes, self._bytes(plan), step_ms)

    def _bytes(self, plan: ChainPlan) -> int:
        if self._size is None:
            return 0
        return self._size.stage(0, len(self._size.layers), plan.kv_tokens)

    def _run(self, plan: ChainPlan, site: DraftSite) -> DraftRun:
        run = self._options.draft_run(self._options.cache)
        return replace(run, kv_tokens=plan.kv_tokens, site=site)

    def _candidates(self, busy: set[str], held: Held) -> list[Candidate]:
        latencies = {(link.source, link.target): link.latency_ms for link in self._survey.links()}

        def latency_ms(source: str, target: str) -> float:
            return latencies.get((source, target), UNKNOWN_LATENCY_MS)

        return [
            Candidate(
                key=record.key,
                name=record.name,
                room=Reserve().usable(record.memory_for(_ENGINE)) - held.taken[record.key],
                round_trip_ms=0.0
                if record.key == self._fleet.local_key
                else latency_ms(HEAD, record.key) + latency_ms(record.key, HEAD),
                drafts=held.drafts[record.key],
                problem=_problem(record, busy),
            )
            for record in self._fleet.nodes()
        ]

    def _site(self, node: str, manifest: Manifest, move: DraftMove | None) -> DraftSite:
        """Raises StageError where the node is gone."""
        record = next((record for record in self._fleet.nodes() if record.key == node), None)
        if record is None:
            raise StageError("the node is gone", where=self._fleet.name_of(node))
        model = self._fleet.model_ref(manifest)

        def start(index: int, _: str, task: Start, heard: Heard) -> Stage:
            def hear(of: Stage, said: FromStage | StageError) -> None:
                match said:
                    case StageProgress(what=what, done=done, total=total):
                        record.work = Work.told(f"{what} (draft)", done, total)
                    case Ready() | StageError():
                        record.work = None
                heard(of, said)

            name = f"{record.name} (draft {model.name})"
            stage = self._fleet.orders.open_stage(node, name, model, task, hear)
            if move is not None:
                move.follow(stage)
            return stage

        is_here = node == self._fleet.local_key
        return DraftSite(
            start_stage=start,
            interface=self._interface,
            head_host=HEAD,
            locate=self._fleet.locate,
            device="CPU" if is_here else record.device_for(_ENGINE),
            threads=DraftSite().threads if is_here else None,
            background=is_here,
        )


def _problem(record: NodeRecord, busy: set[str]) -> str | None:
    if record.key in busy:
        return "it carries layers"
    if record.setback is not None:
        return f"it is left out ({record.setback.why})"
    if kind_of(_ENGINE) not in record.hello.engines:
        return "it does not run OpenVINO"
    if not record.costs:  # it may well be planned with in a moment
        return "it is not measured yet"
    return None
