"""`bench pipeline`: two stages with a core each, against one core alone and against two replicas.

Two replicas, a core each with half of the users, are the limit for any split of the same two cores. With one user the
limit is one core alone. Rates are those of decoding, while every user is being answered. Prefix caches are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from agent import paths
from agent.bench.load import run_load
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report, at_least, at_most
from agent.bench.sides import Effort, Measure, compare, ratio
from pipeline.averages import LastSteps
from pipeline.head import Head
from pipeline.running import RunningModel, RunOptions
from shards import manifest
from shards.edges import layer_words
from shards.manifest import WEIGHTS
from shards.progress import Progress

EFFORT = Effort(users=(1, 2, 4, 8, 16), rounds=2, new_tokens=96, starts=3)
QUICK = Effort(users=(1, 8), rounds=1, new_tokens=32)

SMALL_LIMIT = 300_000_000
"""Bytes of weights below which a model counts as small: its steps are short against every fixed cost."""
WANTED_SMALL = (0.85, 0.85)
"""Of one core alone with one user; of two replicas with more."""
WANTED = (0.95, 0.92)

OVERHEAD_MS, OVERHEAD_USERS = 1.0, 8

TWO, ONE, REPLICAS = "two stages", "one core", "two replicas"


def run(package: Path, effort: Effort, progress: Progress) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: a side could not be loaded, or failed.
    """
    settings: dict[str, Any] = {"package": package.name, **effort.settings}
    report = Report("pipeline", settings)
    costs: dict[int, list[dict[str, float]]] = {users: [] for users in effort.users}

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        with (
            RunningModel.open(package, _options((0,), (1,)), progress) as two,
            RunningModel.open(package, _options((0,)), progress) as alone,
            RunningModel.open(package, _options((1,)), progress) as other,
        ):
            prompts = chat_prompts(two.tokenizer, two.manifest.facts, max(effort.users))
            settings["stages"] = [layer_words(facts) for facts in two.chain.facts]
            settings["properties"] = [facts.properties for facts in two.chain.facts]

            def rate(heads: Sequence[Head], users: int) -> float:
                return run_load(heads, prompts[:users], effort.new_tokens).decode_tokens_per_second

            def run_two(users: int) -> float:
                got = rate([two.head], users)
                costs[users].append(_costs(two.head.snapshot().times, users))
                return got

            yield {
                TWO: run_two,
                ONE: lambda users: rate([alone.head], users),
                REPLICAS: lambda users: rate([alone.head, other.head], users),
            }

    medians = compare(report, start, effort, progress)
    small = manifest.read(package).file(WEIGHTS).size < SMALL_LIMIT
    single, many = WANTED_SMALL if small else WANTED
    for users, rates in medians.items():
        limit, wanted = (ONE, single) if users == 1 else (REPLICAS, many)
        got = ratio(report, users, TWO, limit)
        report.results.append({"users": users, **rates, "ratio": got, **_median(costs[users])})
        report.targets.append(at_least(f"two stages / {limit}, tok/s, {users} users", got, wanted))
    if OVERHEAD_USERS in costs:
        what = f"head and wire, ms a step, {OVERHEAD_USERS} users"
        report.targets.append(at_most(what, _median(costs[OVERHEAD_USERS])["cost a step"], OVERHEAD_MS))
    return report


def _costs(last: LastSteps, users: int) -> dict[str, float]:
    """Milliseconds: what head and wire cost a step, then what they did for it, most of it beside the computing.

    The cost is what the steps' interval has beyond their computing: that of the slowest stage where there are users
    enough to keep all stages at work, of all stages otherwise.
    """
    computing = [stage.compute for stage in last.stages]
    cost = last.interval - (max(computing) if users >= len(computing) else sum(computing))
    return {
        "cost a step": cost / 1e3,
        "head ms": (last.head + last.listeners) / 1e3,
        "wire ms": last.wire / 1e3,
    }


def _median(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(cost[name] for cost in costs) for name in costs[0]}


def _options(*cores: tuple[int, ...]) -> RunOptions:
    return RunOptions(stages=len(cores), threads=1, cores=cores, prefix_cache=False, cache=paths.tuning_folder())
