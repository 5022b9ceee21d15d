"""`bench concurrency`: two stages with a core each under 1 to 64 users, against what else these cores could do.

All sides are loaded at the same time and asked in turn, in the same way: users who ask again when they are answered,
and then independent users at a rate. Prompts are of mixed lengths, answers of a fixed number of tokens past any stop,
and prefix caches are off. There are two rates: of all tokens over all the time, prompts and all; and of decoding, while
all users are being answered and none waits for a first token.

- one core: the whole model on one of the cores.
- two replicas: the whole model on each, and each request to the one with less to do: the limit of any split.
- GenAI: openvino_genai's continuous batching, one process with a thread on each of the two cores, as one would run it
  on this PC; `bench parity` compares engines core by core.
- hub and spoke: the published protocol, with our stages; see `hub`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agent import paths
from agent.bench.arrivals import ClosedLoop, Poisson, Traffic
from agent.bench.hub import Hub
from agent.bench.load import Load, run_traffic
from agent.bench.pipeline import ONE, REPLICAS, SMALL_LIMIT, TWO
from agent.bench.prompts import mixed_prompts
from agent.bench.report import Report, Target, at_least
from agent.bench.rival import Rival
from agent.bench.sides import RATE, Effort, in_turn, ratio
from pipeline.layout import lay_out
from pipeline.replicas import Replicas
from pipeline.running import RunningModel, RunOptions
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.edges import layer_words
from shards.manifest import WEIGHTS
from shards.progress import Progress

EFFORT = Effort(users=(1, 2, 4, 8, 16, 32, 64), rounds=1, new_tokens=96, starts=2)
QUICK = Effort(users=(1, 8), rounds=1, new_tokens=24)

GENAI, HUB = "GenAI", "hub and spoke"

WANTED_SMALL, WANTED = 0.92, 0.96
"""Of two replicas, for models below SMALL_LIMIT and above."""
WANTED_USERS = range(2, 33)
MANY_USERS, WANTED_OF_HUB = 8, 3.0
"""In decoding: prompts cost either about the same."""

POISSON = "Poisson"
"""Stands in for the number of users."""
UTILISATION = 0.7
"""Of the most that two stages did in closed loops: the rate of independent users."""

DECODING = "decoding_tokens_per_second"

_FEWEST_QUESTIONS, _MOST_SECOND_QUESTIONS = 4, 16
"""Of all users together; each asks once, and some of them again."""
_LEAST_DECODED = 4
"""Tokens of each user, below which a rate says nothing."""
_PERCENTILES = (50, 95, 99)
_CORES = (0, 1)

Side = Callable[[Traffic, int], Load]
"""Runs a side once, for so many tokens an answer."""


def run(package: Path, effort: Effort, progress: Progress, *, seconds: float | None = None) -> Report:
    """Run it; with `seconds`, users go on asking for so long instead of a number of times.

    Raises:
        EdgeAgentError: a side could not be loaded, or failed.
    """
    settings: dict[str, Any] = {
        "package": package.name,
        **effort.settings,
        "cores": list(_CORES),
    }
    report = Report("concurrency", settings)
    facts = manifests.read(package).facts
    prompts = mixed_prompts(Tokenizer.load(package), facts, max(16, *effort.users))
    prompts = [prompt[: facts.context_length - effort.new_tokens] for prompt in prompts]
    settings["prompt_tokens"] = sorted(len(prompt) for prompt in prompts)
    loads: dict[tuple[int | str, str], list[Load]] = defaultdict(list)
    rate = 0.0

    def measure(sides: Mapping[str, Side], users: int | str, traffic: Traffic, round_number: int) -> None:
        for name in in_turn(sides, round_number):
            load = sides[name](traffic, effort.new_tokens)
            loads[users, name].append(load)
            report.runs.append({"users": users, "side": name, **_figures([load], users)})

    loops = [(users, number) for users in effort.users for number in range(effort.rounds)]
    steps = len(loops) + effort.rounds
    for start in range(effort.starts):
        what = f"concurrency: start {start + 1} of {effort.starts}"
        with _sides(package, prompts, max(effort.users), settings, progress) as sides:
            _warm_up(sides, effort, what, progress)
            for done, (users, number) in enumerate(loops):
                progress(f"{what}, {users} users", done, steps)
                measure(sides, users, _loop(users, seconds), start + number)
            rate = rate or _rate(report, effort)
            for number in range(effort.rounds):
                progress(f"{what}, {rate:.2f} questions a second", len(loops) + number, steps)
                traffic = Poisson(rate, max(_FEWEST_QUESTIONS, *effort.users), seed=start * effort.rounds + number)
                measure(sides, POISSON, traffic, start + number)
            progress(what, steps, steps)
    settings["poisson_questions_per_second"] = round(rate, 3)
    for (load, side), of_side in loads.items():
        report.results.append({"users": load, "side": side, **_figures(of_side, load)})
    _set_targets(report, effort.users, manifests.read(package).file(WEIGHTS).size < SMALL_LIMIT)
    return report


@contextmanager
def _sides(
    package: Path, prompts: Sequence[tuple[int, ...]], users: int, settings: dict[str, Any], progress: Progress
) -> Iterator[Mapping[str, Side]]:
    """All sides, loaded; each can hold the longest prompts of all users."""
    cache = paths.tuning_folder()
    longest = max(len(prompt) for prompt in prompts) + settings["new_tokens"]
    options = RunOptions(
        stages=2, threads=1, prefix_cache=False, cache=cache, max_sequences=users, kv_tokens=(users + 1) * longest
    )
    two_stages = options.model_copy(update={"cores": tuple((core,) for core in _CORES)})
    first, second = (options.model_copy(update={"stages": 1, "cores": ((core,),)}) for core in _CORES)
    layout = lay_out(package, manifests.read(package), two_stages, cache, progress)
    with (
        RunningModel.open(package, two_stages, progress) as two,
        RunningModel.open(package, first, progress) as one,
        RunningModel.open(package, second, progress) as other,
        Hub(layout.stages, cache, users) as hub,
        Rival("genai", package, threads=len(_CORES), cores=_CORES) as genai,
    ):
        settings["stages"] = [layer_words(facts) for facts in two.chain.facts]
        settings["stages of the hub"] = [layer_words(config) for config in layout.stages]
        settings["properties"] = [facts.properties for facts in two.chain.facts]
        replicas = Replicas()
        replicas.replace([(one.head, 1.0), (other.head, 1.0)])
        yield {
            TWO: lambda traffic, tokens: run_traffic(two.head, traffic, prompts, tokens),
            ONE: lambda traffic, tokens: run_traffic(one.head, traffic, prompts, tokens),
            REPLICAS: lambda traffic, tokens: run_traffic(replicas, traffic, prompts, tokens),
            GENAI: lambda traffic, tokens: genai.run_traffic(traffic, prompts, tokens),
            HUB: lambda traffic, tokens: run_traffic(hub, traffic, prompts, tokens),
        }


def _warm_up(sides: Mapping[str, Side], effort: Effort, what: str, progress: Progress) -> None:
    """Kernels are made and memory is touched at first use; few and many rows are different kernels."""
    for number, (name, side) in enumerate(sides.items()):
        progress(f"{what}: {name} warms up", number, len(sides))
        for users in {min(effort.users), max(effort.users)}:
            side(ClosedLoop(users, questions=max(users, _FEWEST_QUESTIONS)), 4)


def _loop(users: int, seconds: float | None) -> ClosedLoop:
    if seconds is not None:
        return ClosedLoop(users, seconds=seconds)
    return ClosedLoop(users, max(users + min(users, _MOST_SECOND_QUESTIONS), _FEWEST_QUESTIONS))


def _rate(report: Report, effort: Effort) -> float:
    """Questions a second that are `UTILISATION` of what two stages have answered at best."""
    best = max(run[RATE] for run in report.runs if run["side"] == TWO)
    return UTILISATION * float(best) / effort.new_tokens


def _figures(loads: Sequence[Load], users: int | str) -> dict[str, float | None]:
    """Rates as medians of loads, times over all their answers together."""
    decoding = [load.decode_rate(users, _LEAST_DECODED * users) for load in loads] if isinstance(users, int) else []
    decoded = [rate for rate in decoding if rate is not None]
    first = [time for load in loads for time in load.first_token_seconds]
    between = [time for load in loads for time in load.between_token_seconds]
    return {
        RATE: round(median(load.tokens_per_second for load in loads), 2),
        DECODING: round(median(decoded), 2) if decoded else None,
        **{f"first_token_p{p}_ms": round(1e3 * float(np.percentile(first, p)), 1) for p in _PERCENTILES},
        **{f"between_tokens_p{p}_ms": round(1e3 * float(np.percentile(between, p)), 1) for p in _PERCENTILES},
    }


def _set_targets(report: Report, users: Sequence[int], is_small: bool) -> None:
    wanted = WANTED_SMALL if is_small else WANTED
    for number in users:
        if number in WANTED_USERS:
            for rate in (DECODING, RATE):
                report.targets.append(_target(report, number, REPLICAS, rate, wanted))
    for number in users:
        report.targets.append(_target(report, number, HUB, DECODING, WANTED_OF_HUB if number >= MANY_USERS else 1.0))
        report.targets.append(_target(report, number, HUB, RATE, 1.0))


def _target(report: Report, users: int, control: str, rate: str, least: float) -> Target:
    what = f"two stages / {control}, {users} users, {'decoding' if rate == DECODING else 'all'} tok/s"
    if any(run[rate] is None for run in report.runs if run["users"] == users and run["side"] in (TWO, control)):
        return Target(what, f">= {least:g}", "all users hardly ever decoded: ask for more --tokens", False)
    return at_least(what, ratio(report, users, TWO, control, rate), least)
