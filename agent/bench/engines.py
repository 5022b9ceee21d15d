"""`bench engines`: OpenVINO and llama.cpp on the same GGUF, alone, in two stages and mixed.

Each engine as one core alone, as two stages with a core each, and as two replicas with a core and half of the users
each, the limit for any split; chains of one stage on each, both ways round; and llama-cpp-python by itself on one core,
which answers one user as its own class does it, and several in one batch. All have one thread a core and keep keys and
values in f16. Rates are those of decoding, while every user is being answered. Prefix caches are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent import paths
from agent.bench.llamacpp_control import LlamaCppControl
from agent.bench.load import run_load
from agent.bench.pipeline import ONE, REPLICAS, TWO
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report, Target, at_least
from agent.bench.sides import Effort, Measure, compare, ratio
from pipeline.chain import Chain
from pipeline.chain_times import ChainTimes
from pipeline.head import Head
from pipeline.layout import lay_out
from pipeline.measuring import cost_profile
from pipeline.planning.dealing import Deal
from pipeline.planning.plan import ModelSize, NodeOffer
from pipeline.planning.prediction import Times
from pipeline.running import Copy, RunningModel, RunOptions
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.edges import layer_words
from shards.errors import ConfigurationError, PackageError
from shards.manifest import Manifest
from shards.progress import Progress
from shards.runtime import EngineName, StageConfig

EFFORT = Effort(users=(1, 2, 8), rounds=2, new_tokens=96, starts=2)
QUICK = Effort(users=(1, 8), rounds=1, new_tokens=32)

NAMES: dict[EngineName, str] = {"openvino-paged": "OpenVINO", "llamacpp": "llama.cpp"}
MIXED: dict[str, tuple[EngineName, EngineName]] = {
    "OpenVINO, then llama.cpp": ("openvino-paged", "llamacpp"),
    "llama.cpp, then OpenVINO": ("llamacpp", "openvino-paged"),
}
CONTROL = "llama-cpp-python"

WANTED_ALONE, WANTED_BATCHED = 0.97, 0.95
"""Of llama-cpp-python, by one llama.cpp stage; with one user and with more."""
WANTED_OF_ONE, WANTED_OF_REPLICAS = 0.9, 0.85
"""Of one core with one user, and of two replicas with more, by two llama.cpp stages."""

_CORES = (0, 1)
_DEALT_ROWS, _DEALT_STEPS = 4, 2
"""Rows of a step, and steps on their way, for which the layers of mixed chains are dealt."""


def sources(given: Path, progress: Progress) -> tuple[Path, Path]:
    """(package, GGUF) of what a user gives: a package of both backends, or a GGUF, of which one is made and kept.

    Raises:
        ExportError: the GGUF cannot be exported.
        PackageError: the package has not both backends.
        ConfigurationError: the GGUF that it was made of is not there.
    """
    if given.is_dir():
        return given, _gguf_of(given)
    from exporters.export import export

    package = paths.cache_folder() / "packages" / f"{given.stem}-both"
    try:
        if _gguf_of(package) == given.resolve():
            return package, given
    except (PackageError, ConfigurationError):
        pass  # none, or of another file
    return export(str(given), package, weights="keep", backend="both", force=True, progress=progress).package, given


def _gguf_of(package: Path) -> Path:
    """What a package of both backends was made of; raises as `sources`."""
    manifest = manifests.read(package)
    for engine in NAMES:
        manifest.spans_for(engine)
    gguf = Path(str(manifest.source.get("path", "")))
    if not gguf.is_file():
        raise ConfigurationError(
            f"the GGUF that the package was made of is not at {gguf}", where=str(package), hint="Give the GGUF."
        )
    return gguf


def run(package: Path, gguf: Path, effort: Effort, progress: Progress) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: a side could not be loaded, or failed.
    """
    settings: dict[str, Any] = {"package": package.name, **effort.settings}
    report = Report("engines", settings)
    manifest = manifests.read(package)
    prompts = chat_prompts(Tokenizer.load(package), manifest.facts, max(effort.users))
    context = max(map(len, prompts)) + effort.new_tokens

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        with ExitStack() as stack:
            heads: dict[str, tuple[Head, ...]] = {}
            layers: dict[str, list[str]] = {}
            for name, engines in MIXED.items():
                copy = stack.enter_context(_mixed(package, manifest, engines, progress))
                layers[name] = [layer_words(facts) for facts in copy.chain.facts]
                heads[name] = (copy.head,)
            # those that are compared follow one another: the speed of a machine changes from minute to minute
            for engine, name in NAMES.items():
                two, alone, other = (
                    stack.enter_context(RunningModel.open(package, _options(engine, *cores), progress))
                    for cores in (_CORES, _CORES[:1], _CORES[1:])
                )
                layers[name] = [layer_words(facts) for facts in two.chain.facts]
                heads |= {f"{name}, {REPLICAS}": (alone.head, other.head), f"{name}, {TWO}": (two.head,)}
                heads[f"{name}, {ONE}"] = (alone.head,)
            settings["stages"] = layers
            control = stack.enter_context(LlamaCppControl(gguf, max(effort.users), context, _CORES[:1]))

            def measure(side: Sequence[Head]) -> Measure:
                return lambda users: run_load(side, prompts[:users], effort.new_tokens).decode_tokens_per_second

            yield {
                **{name: measure(side) for name, side in heads.items()},
                CONTROL: lambda users: control.run(prompts[:users], effort.new_tokens)[0],
            }

    medians = compare(report, start, effort, progress)
    report.results = [
        {"side": side, **{f"{users} users": rates[side] for users, rates in medians.items()}}
        for side in medians[effort.users[0]]
    ]
    set_targets(report, effort.users)
    return report


def set_targets(report: Report, users: Sequence[int]) -> None:
    """What one and two llama.cpp stages must reach, from the report's runs."""
    one, two, replicas = (f"{NAMES['llamacpp']}, {side}" for side in (ONE, TWO, REPLICAS))
    for number in users:
        wanted = WANTED_ALONE if number == 1 else WANTED_BATCHED
        report.targets.append(_target(report, number, one, CONTROL, wanted))
    for number in users:
        limit, wanted = (one, WANTED_OF_ONE) if number == 1 else (replicas, WANTED_OF_REPLICAS)
        report.targets.append(_target(report, number, two, limit, wanted))


def _target(report: Report, users: int, ours: str, theirs: str, least: float) -> Target:
    return at_least(f"{ours} / {theirs}, tok/s, {users} users", ratio(report, users, ours, theirs), least)


@contextmanager
def _mixed(
    package: Path, manifest: Manifest, engines: tuple[EngineName, EngineName], progress: Progress
) -> Iterator[Copy]:
    """A chain of a stage on each of two engines, with a core each."""
    cache = paths.tuning_folder()
    layers = _deal(package, manifest, engines, progress)
    options = _options(engines[0], *_CORES)
    configs = [
        lay_out(package, manifest, _options(engine, *_CORES, split=layers), cache, progress).stages[place]
        for place, engine in enumerate(engines)
    ]
    chain = Chain.start(
        configs, max_rows=options.token_budget, max_sequences=options.max_sequences, cache=cache, progress=progress
    )
    copy = Copy.start(chain, manifest.facts.context_length, options, ChainTimes())
    try:
        yield copy
    finally:
        copy.close()


def _deal(
    package: Path, manifest: Manifest, engines: tuple[EngineName, EngineName], progress: Progress
) -> tuple[int, ...]:
    """Layers of each stage, by what each engine takes on one core."""
    depth, offers = manifest.facts.layers, list[NodeOffer]()
    for place, engine in enumerate(engines):
        like = StageConfig(
            package=package.resolve(), first_layer=0, end_layer=depth, engine=engine, threads=1,
            cores=(_CORES[place],), kv_precision="f16",
        )  # fmt: skip
        costs = cost_profile(like, manifest, paths.tuning_folder(), progress)
        offers.append(NodeOffer(id=str(place), name=engine, memory=0, costs=costs))
    step = Times(ModelSize.of(manifest, "fast"), offers, ()).step((0, 1), _DEALT_ROWS)
    dealt = Deal(step, (depth - 1, depth - 1), depth, _DEALT_STEPS).best()
    assert dealt is not None  # whatever its period is
    return dealt


def _options(engine: EngineName, *cores: int, split: tuple[int, ...] | None = None) -> RunOptions:
    return RunOptions(
        stages=len(cores), split=split, engine=engine, threads=1, cores=tuple((core,) for core in cores),
        kv_precision="f16", prefix_cache=False, cache=paths.tuning_folder(),
    )  # fmt: skip
