"""A model package, running on this computer: tokenizer, stages and head together."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from pipeline.chain import Chain
from pipeline.chain_times import ChainTimes
from pipeline.head import Head
from pipeline.layout import RunOptions, lay_out
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.draft_choice import DraftChoice
from pipeline.speculation.drafter import Drafter
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import StageError
from shards.manifest import Manifest
from shards.progress import Progress, silent

__all__ = ["Copy", "RunOptions", "RunningModel"]

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 4
_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


def scheduler_config(
    chain: Chain,
    context_length: int,
    options: RunOptions,
    times: ChainTimes,
) -> SchedulerConfig:
    """What the scheduler of a chain is told."""
    return SchedulerConfig(
        kv_tokens=chain.kv_tokens,
        block=chain.block,
        context_length=context_length,
        stages=len(chain.stages),
        runs_ahead=True,
        step_times=times.table,
        link_ms=times.link_ms,
        detour_ms=times.detour_ms,
        token_budget=options.token_budget,
        target_tbt_ms=options.target_tbt_ms,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
        prefix_cache=options.prefix_cache,
        kept_sequences=chain.sequences,
        speculation=SpeculationConfig(options.draft_tokens, options.asynchronous),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """One copy of a model at work: a chain, and the head that drives it."""

    chain: Chain
    head: Head

    @classmethod
    def start(
        cls,
        chain: Chain,
        context_length: int,
        options: RunOptions,
        times: ChainTimes,
        drafter: Drafter | None = None,
    ) -> Self:
        """Give a chain its head; chain and drafter are the copy's from here on, and are closed if that fails."""
        try:
            scheduler = Scheduler(scheduler_config(chain, context_length, options, times), drafter)
            return cls(chain, Head(chain, scheduler))
        except BaseException:
            if drafter is not None:
                drafter.close()
            chain.close()
            raise

    def warm_up(self, progress: Progress = silent) -> None:
        """Answer something nobody asked: kernels are made at first use, which would cost the first user seconds.

        Raises:
            StageError: the chain has failed.
        """
        ended = threading.Event()
        failures: list[StageError] = []

        def listen(event: RequestEvent) -> None:
            if isinstance(event, Failed) and isinstance(event.error, StageError):
                failures.append(event.error)
            if isinstance(event, Finished | Failed):
                ended.set()

        progress("warming up", 0, 1)
        prompt = tuple(position % self.chain.limits.vocabulary for position in range(_WARM_UP_PROMPT))
        self.head.submit(Request("warm-up", prompt, Sampling(temperature=0.0), _WARM_UP_TOKENS), listen)
        while not ended.wait(_POLL_SECONDS):
            pass
        if failures:
            raise failures[0]
        progress("warming up", 1, 1)

    def close(self) -> None:
        """Cancel what runs and end every process."""
        self.head.close()
        self.chain.close()


class RunningModel:
    """A model loaded on this computer. Make one with `open`; it is a context manager."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer, copy: Copy) -> None:
        self.manifest, self.tokenizer = manifest, tokenizer
        self.copies = (copy,)
        self.retiring: tuple[Copy, ...] = ()
        self.chain, self.head = copy.chain, copy.head

    @classmethod
    def open(cls, package: Path, options: RunOptions, progress: Progress = silent) -> Self:
        """Load a package.

        Raises:
            PackageError: the package, or that of its draft, cannot be read.
            ConfigurationError: the options, or the draft, do not suit the model.
            StageError: a stage could not load.
        """
        manifest = manifests.read(package)
        manifest.check_whole_vocabulary(where=package)
        tokenizer = Tokenizer.load(package)
        choice = DraftChoice.of(options.draft, package, manifest, tokenizer)
        with ExitStack() as stack, ExitStack() as undo:
            cache = options.cache or Path(stack.enter_context(TemporaryDirectory(prefix="edge-agent-")))
            drafter = choice.open(options.draft_run(cache), progress)
            if drafter is not None:
                undo.callback(drafter.close)
            layout = lay_out(package, manifest, options, cache, progress)
            chain = Chain.start(
                layout.stages,
                max_rows=options.token_budget,
                max_sequences=options.max_sequences,
                cache=cache,
                progress=progress,
            )
            undo.pop_all()
        context = manifest.facts.context_length
        return cls(manifest, tokenizer, Copy.start(chain, context, options, layout.times, drafter))

    def close(self) -> None:
        """Cancel what runs and end every process."""
        self.copies[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
