"""From a planned chain to one at work on its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from agent.fleet.head import at_work
from agent.fleet.head.at_work import Held, Running, in_parallel
from agent.fleet.head.fleet_drafts import FleetDrafts
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.node_record import NodeRecord, Work
from agent.fleet.head.survey import Survey
from pipeline.chain import Chain
from pipeline.control import FromStage, Ready, Start
from pipeline.control import Progress as StageProgress
from pipeline.planning.pacing_table import chain_rate, pacing_table, stage_times
from pipeline.planning.plan import HEAD, ChainPlan, ModelSize, Plan, Wish
from pipeline.planning.room import kv_tokens
from pipeline.running import Copy, RunOptions
from pipeline.stages import Heard, Stage
from shards.edges import layer_words, layers_of
from shards.errors import StageError
from shards.manifest import Manifest
from shards.progress import Progress
from shards.runtime import StageConfig


class ChainOpener:
    """Opens chains, from any thread.

    Args:
        package: The model package, here on the head's PC.
        manifest: Of the package.
        options: How to run it.
        size: Of the model.
        fleet: The nodes.
        survey: What they can do.
        interface: What head and nodes listen on for results and steps: `*`, or loopback if all are on this PC.
        drafts: What guesses how the answers of each chain go on.
    """

    def __init__(
        self,
        package: Path,
        manifest: Manifest,
        options: RunOptions,
        size: ModelSize,
        fleet: FleetHead,
        survey: Survey,
        interface: str,
        drafts: FleetDrafts,
    ) -> None:
        self._manifest = manifest
        self._package, self._options, self._size, self._interface = package, options, size, interface
        self._fleet, self._survey, self._drafts = fleet, survey, drafts
        self._epochs = count(1)

    def open(self, plan: ChainPlan, draft_node: str, progress: Progress, *, blame: bool = True) -> Running:
        """Have the nodes load their stages, connect them, and answer something so that they are warm.

        Args:
            plan: What to open.
            draft_node: The node of its draft, if it has one.
            progress: Told how it goes.
            blame: A node whose stage does not load is left out.

        Raises:
            StageError: a stage could not load, or a node is gone; the other stages have been ended.
        """
        options, records = self._options, {record.key: record for record in self._fleet.nodes()}
        missing = [stage.node for stage in plan.stages if stage.node not in records]
        if missing:
            raise StageError("the node is gone", where=self._fleet.name_of(missing[0]))
        configs = [
            StageConfig(
                package=self._package,  # each node puts its own in
                **layers_of(stage),
                engine=stage.engine,
                mode=options.mode,
                device=records[stage.node].device_for(stage.engine),
                threads=options.threads,
                kv_tokens=plan.kv_tokens,
                kv_precision=options.kv_precision,
                tune=options.tune,
                capture=options.capture and stage is plan.stages[-1],
            )
            for stage in plan.stages
        ]
        try:
            times = pacing_table(plan, self._size, self._survey.known(), self._survey.links())
        except KeyError:
            raise StageError("a node has just left, or come again", where=self._manifest.facts.name) from None
        chain = Chain.start(
            configs,
            max_rows=options.token_budget,
            max_sequences=options.max_sequences,
            epoch=next(self._epochs),
            hidden="f16" if len(plan.stages) > 1 and options.mode == "fast" else "f32",
            start_stage=self._starter(plan, records, blame=blame),
            interface=self._interface,
            head_host=HEAD,
            locate=self._fleet.locate,
            progress=progress,
        )
        try:
            drafter, draft = self._drafts.open(plan, draft_node, progress)
        except BaseException:
            chain.close()
            raise
        copy = Copy.start(chain, self._manifest.facts.context_length, options, times, drafter)
        try:
            copy.warm_up(progress)
        except BaseException:
            copy.close()
            raise
        return Running(copy, plan, draft)

    def stage_times(self, plan: ChainPlan) -> Callable[[int], Sequence[float]] | None:
        """Predicted milliseconds of each stage of a chain for a number of rows; None if a node is not known."""
        with suppress(KeyError):
            return stage_times(plan, self._size, self._survey.known(), self._survey.links())
        return None

    def rate(self, plans: Sequence[ChainPlan], wish: Wish | None = None) -> float | None:
        """What is predicted now of chains together, in tokens a second; None if a node is not known.

        Args:
            plans: Of the chains.
            wish: Another one than they were planned for; its users are dealt to them as they would come.
        """
        offers, links = self._survey.known(), self._survey.links()
        with suppress(KeyError):
            dealt = plans if wish is None else deal_users(plans, wish)
            return sum(chain_rate(plan, self._size, offers, links) for plan in dealt)
        return None

    def open_all(
        self,
        plan: Plan,
        kept: Mapping[ChainPlan, Running],
        leaving: Sequence[Running],
        progress: Progress,
        *,
        blame: bool,
    ) -> dict[ChainPlan, Running]:
        """Open the chains of a plan that are not at work, all at once, all or none; see `open`.

        Args:
            plan: The plan.
            kept: Those at work. Where their drafts are in the way of layers, they go on without.
            leaving: What takes memory for a while besides.
            progress: Told how it goes.
            blame: A node whose stage does not load is left out.
        """
        staying, here = list(kept.values()), self._fleet.local_key
        self._drafts.halt()
        self._drafts.make_way(at_work.in_the_way(plan, staying, here))
        new = [chain for chain in plan.chains if chain not in kept]
        held = at_work.together(plan, staying, leaving, here)
        places = self._drafts.place(new, at_work.memory(plan.chains), held)
        opened: dict[ChainPlan, Running] = {}

        def open_one(chain: ChainPlan, draft_node: str) -> None:
            opened[chain] = self.open(chain, draft_node, progress, blame=blame)

        errors = in_parallel([partial(open_one, *one) for one in zip(new, places, strict=True)])
        if errors:
            in_parallel([one.copy.close for one in opened.values()])
            raise errors[0]
        return opened

    def settle_drafts(self, running: Sequence[Running], leaving: Sequence[Running], moved: Callable[[], None]) -> None:
        """Have the drafts of chains at work move to idle nodes; see FleetDrafts.settle."""
        self._drafts.settle(running, Held.by((*running, *leaving)), moved)

    def _starter(
        self, plan: ChainPlan, records: dict[str, NodeRecord], *, blame: bool
    ) -> Callable[[int, str, Start, Heard], Stage]:
        model = self._fleet.model_ref(self._manifest)
        loading = {stage.node for stage in plan.stages}

        def start(index: int, _: str, task: Start, heard: Heard) -> Stage:
            stage = plan.stages[index]
            record = records[stage.node]
            layers = f"layers {layer_words(stage)}"
            name = f"{record.name} ({layers})"

            def hear(of: Stage, said: FromStage | StageError) -> None:
                match said:
                    case StageProgress(what=what, done=done, total=total):
                        record.work = Work.told(f"{what} ({layers})", done, total)
                    case Ready():
                        record.work, record.failures = None, 0
                        loading.discard(stage.node)
                    case StageError():
                        record.work = None
                        if stage.node in loading:
                            loading.clear()  # what happens to the others now is a consequence
                            if blame:
                                self._fleet.leave_out(record, str(said))
                heard(of, said)

            return self._fleet.orders.open_stage(stage.node, name, model, task, hear)

        return start


def deal_users(plans: Sequence[ChainPlan], wish: Wish) -> list[ChainPlan]:
    """The chains with a wish's users, dealt by their rates; those whose context finds no room on a chain wait."""
    users = [plan.users for plan in plans]
    if plans and sum(users) != wish.users:
        users, rates = [0] * len(plans), [max(plan.prediction.many_users, 1e-9) for plan in plans]
        for _ in range(wish.users):
            waits = [(count + 1) / rate for count, rate in zip(users, rates, strict=True)]
            users[waits.index(min(waits))] += 1
    room = [plan.kv_tokens // kv_tokens(1, wish.context) for plan in plans]
    return [
        plan.model_copy(update={"users": min(count, most)})
        for plan, count, most in zip(plans, users, room, strict=True)
        if min(count, most) > 0
    ]
