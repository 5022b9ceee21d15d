"""`bench plan`: what the planner predicts against what is measured, for one stage, two stages and two replicas.

Each stage has a core of its own. On one machine these share its memory, so that each is slower beside the other than
alone; PCs do not. So a core is measured as it is used: alone for one stage, beside the other for two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.bench.load import run_load
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report, Target
from agent.bench.sides import Effort, Measure, compare
from pipeline.head import Head
from pipeline.measuring import cost_profile
from pipeline.planning.pacing_table import chain_rate
from pipeline.planning.plan import ChainPlan, ModelSize, NodeOffer, Wish
from pipeline.planning.planner import plan
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.profile import CostProfile
from shards.progress import Progress, silent
from shards.runtime import StageConfig

EFFORT = Effort(users=(1, 2, 8), rounds=2, new_tokens=96, starts=2)
QUICK = Effort(users=(1, 8), rounds=1, new_tokens=32)

WITHIN = 0.2
"""Of what is measured."""

CORES = (0, 1)
_MEMORY = 2**40
_LAYOUTS = {"one stage": (CORES[:1], 1), "two stages": (CORES, 2), "two replicas": (CORES, 1)}
"""Cores, and stages of a chain."""


def run(package: Path, effort: Effort, progress: Progress) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: a side could not be measured or loaded, or failed.
    """
    manifest = manifests.read(package)
    size = ModelSize.of(manifest, "fast")
    report = Report("plan", {"package": package.name, "starts": effort.starts, "rounds": effort.rounds})
    most = max(effort.users)
    chains: dict[str, tuple[ChainPlan, ...]] = {}
    offers: dict[str, list[NodeOffer]] = {}
    for name, (cores, stages) in _LAYOUTS.items():
        offers[name] = _offers(package, cores, progress)
        wish = Wish(users=most, context=256, stages=stages, replicas=len(cores) > stages)
        chains[name] = plan(size, offers[name], (), wish).chains
    splits = {name: tuple(s.end_layer - s.first_layer for s in first.stages) for name, (first, *_) in chains.items()}
    report.settings["splits"] = {name: list(split) for name, split in splits.items()}

    def predicted(name: str, users: int) -> float:
        """Of the chains of a layout, among which users are dealt in turn."""
        copies = chains[name][:users]
        shares = [len(range(i, users, len(copies))) for i in range(len(copies))]
        rates = [
            chain_rate(chain.model_copy(update={"users": share}), size, offers[name], ())
            for chain, share in zip(copies, shares, strict=True)
        ]
        return sum(rates)

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        with (
            RunningModel.open(package, _options(splits["two stages"], *CORES), progress) as two,
            RunningModel.open(package, _options(splits["one stage"], CORES[0]), progress) as one,
            RunningModel.open(package, _options(splits["one stage"], CORES[1]), progress) as other,
        ):
            prompts = chat_prompts(two.tokenizer, manifest.facts, max(effort.users))

            def rate(heads: Sequence[Head], users: int) -> float:
                return run_load(heads, prompts[:users], effort.new_tokens).decode_tokens_per_second

            yield {
                "one stage": lambda users: rate([one.head], users),
                "two stages": lambda users: rate([two.head], users),
                "two replicas": lambda users: rate([one.head, other.head][:users], users),
            }

    medians = compare(report, start, effort, progress)
    for users, rates in medians.items():
        for name, measured in rates.items():
            expected = predicted(name, users)
            ratio = expected / measured
            row = {"layout": name, "users": users, "predicted": expected, "measured": measured}
            report.results.append({**row, "ratio": ratio})
            what = f"predicted / measured, {name}, {users} users"
            wanted = f"{1 - WITHIN:g} to {1 + WITHIN:g}"
            report.targets.append(Target(what, wanted, round(ratio, 3), abs(ratio - 1) <= WITHIN))
    return report


def _offers(package: Path, cores: Sequence[int], progress: Progress) -> list[NodeOffer]:
    """What the parts cost on each core, measured now, on all of them at the same time."""
    manifest = manifests.read(package)

    def measure(core: int) -> CostProfile:
        like = StageConfig(
            package=package.resolve(), first_layer=0, end_layer=manifest.facts.layers, threads=1, cores=(core,)
        )
        with TemporaryDirectory(prefix="edge-agent-") as folder:
            return cost_profile(like, manifest, Path(folder), progress if core == cores[0] else silent)

    with ThreadPoolExecutor(len(cores)) as pool:
        costs = pool.map(measure, cores)
    whole: dict[str, object] = {"attention": ()}  # a split is given in whole layers
    return [
        NodeOffer(id=str(core), name=f"core {core}", memory=_MEMORY, costs=found.model_copy(update=whole))
        for core, found in zip(cores, costs, strict=True)
    ]


def _options(split: tuple[int, ...], *cores: int) -> RunOptions:
    return RunOptions(split=split, threads=1, cores=tuple((core,) for core in cores), prefix_cache=False)
