"""The sides of `bench speculation`: the same chain with the same stages, each guessing in a way of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.bench.delays import Delays
from pipeline.chain import Chain
from pipeline.chain_times import ChainTimes
from pipeline.layout import RunOptions, lay_out
from pipeline.running import Copy
from pipeline.speculation.draft_choice import DraftChoice, beside_lookup
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.drafter import Drafter
from pipeline.speculation.ngram import NgramDrafter
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.manifest import Manifest
from shards.progress import Progress

NGRAM, MODEL, BOTH = "n-gram", "draft model", "n-gram, then model"

NONE = "no speculation"
ADAPTIVE, SYNCHRONOUS = "adaptive", "synchronous"

_STAGES = 2


@dataclass(frozen=True, slots=True)
class Way:
    """How a side guesses."""

    drafter: str | None = None
    """None: not at all."""
    width: int | None = None
    """Guesses of a step; None: as many as pay."""
    asynchronous: bool = True

    @property
    def name(self) -> str:
        """Of the side."""
        if self.drafter is None:
            return NONE
        if self.width is not None:
            return f"{self.drafter}: {self.width}"
        return f"{self.drafter}: {ADAPTIVE if self.asynchronous else SYNCHRONOUS}"


def adaptive(drafter: str) -> str:
    """Name of the side that guesses as a head does by itself."""
    return Way(drafter).name


def synchronous(drafter: str) -> str:
    """Name of the side that does the same but for sending nothing behind guesses that are not confirmed yet."""
    return Way(drafter, asynchronous=False).name


@dataclass(frozen=True, slots=True)
class Model:
    """What all sides run, and the draft that some of them have."""

    package: Path
    manifest: Manifest
    tokenizer: Tokenizer
    draft: Path | None

    @classmethod
    def read(cls, package: Path, draft: Path | None) -> Model:
        """Read them.

        Raises:
            PackageError: one of them cannot be read.
            ConfigurationError: the draft has another tokenizer.
        """
        manifest = manifests.read(package)
        manifest.check_whole_vocabulary(where=package)
        tokenizer = Tokenizer.load(package)
        if draft is not None:
            DraftChoice.of(str(draft), package, manifest, tokenizer)
        return cls(package, manifest, tokenizer, draft)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What there is to guess with."""
        return (NGRAM,) if self.draft is None else (NGRAM, MODEL, BOTH)

    def ways(self, widths: Sequence[int]) -> tuple[Way, ...]:
        """All of them, without guesses first; the draft model alone only as it is by itself."""
        ways = [Way()]
        for drafter in self.drafters:
            ways += [Way(drafter), Way(drafter, asynchronous=False)]
            if drafter != MODEL:
                ways += [Way(drafter, width) for width in widths]
        return tuple(ways)

    def open_drafter(self, way: Way, options: RunOptions, cache: Path, progress: Progress) -> Drafter | None:
        """A drafter of its own for a side.

        Raises:
            StageError: the draft model does not load.
        """
        if way.drafter is None:
            return None
        if way.drafter == NGRAM:
            return NgramDrafter()
        assert self.draft is not None
        model = DraftModel.start(self.draft, self.manifest.facts.vocabulary, options.draft_run(cache), progress)
        return model if way.drafter == MODEL else beside_lookup(model)


@contextmanager
def opened(
    model: Model,
    ways: Sequence[Way],
    options: RunOptions,
    hop_ms: float,
    cache: Path,
    progress: Progress,
    *,
    local_head: bool = False,
) -> Iterator[Mapping[str, Copy]]:
    """All sides at once, each with stage processes of its own, whose links take `hop_ms` a message.

    With `local_head` there is none between head and first stage.

    Raises:
        StageError: one could not load.
    """
    layout = lay_out(model.package, model.manifest, options, cache, progress)
    with ExitStack() as stack:
        sides: dict[str, Copy] = {}
        for number, way in enumerate(ways):
            progress(f"speculation: {len(ways)} sides are loaded", number, len(ways))
            with ExitStack() as undo:
                drafter = model.open_drafter(way, options, cache, progress)
                if drafter is not None:
                    undo.callback(drafter.close)
                delays = Delays(hop_ms / 1e3, local_head=local_head)
                stack.callback(delays.close)
                chain = Chain.start(
                    layout.stages,
                    max_rows=options.token_budget,
                    max_sequences=options.max_sequences,
                    start_stage=delays.start_stage,
                    locate=delays.locate_first,
                    cache=cache,
                    progress=progress,
                )
                undo.pop_all()
            own = options.model_copy(update={"draft_tokens": way.width, "asynchronous": way.asynchronous})
            # A fleet's head measures its links before it begins.
            near = 0.0 if local_head else hop_ms
            times = ChainTimes(layout.times.table, _STAGES * hop_ms + near, near)
            side = Copy.start(chain, model.manifest.facts.context_length, own, times, drafter)
            stack.callback(side.close)
            sides[way.name] = side
        progress(f"speculation: {len(ways)} sides are loaded", len(ways), len(ways))
        yield sides
