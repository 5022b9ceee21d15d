"""Which drafter a model gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.speculation import same_tokenizer
from pipeline.speculation.cascade import Cascade
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.drafter import MODEL, Drafter, DrafterFacts, DraftText
from pipeline.speculation.ngram import NgramDrafter
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError, StageError
from shards.manifest import Manifest
from shards.progress import Progress, silent

_log = logging.getLogger(__name__)

NONE, NGRAM, AUTO = "none", "ngram", "auto"


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """What was asked for, checked; it opens a drafter for each head."""

    is_on: bool
    package: Path | None
    """Of the draft model that guesses where nothing can be looked up."""
    name: str
    """Of that model."""
    vocabulary: int
    """Of the model guessed for."""

    @classmethod
    def of(cls, draft: str, package: Path, manifest: Manifest, tokenizer: Tokenizer) -> Self:
        """Check what was asked for.

        Args:
            draft: `none`, `ngram`, `auto` (which is ngram), or a draft model's package.
            package: The model guessed for.
            manifest: Of it.
            tokenizer: Of it.

        Raises:
            PackageError: the draft's package cannot be read.
            ConfigurationError: it has another tokenizer.
        """
        path, name = None, ""
        if draft not in (NONE, NGRAM, AUTO):
            path = Path(draft)
            if not path.exists():
                raise ConfigurationError(
                    f"{draft!r} is not one of {NONE}, {NGRAM} and {AUTO}, and there is no such model package",
                    where="--draft",
                    hint="Make a package with: edge-agent export SOURCE -o PACKAGE",
                )
            other = manifests.read(path)
            same_tokenizer.check(package, manifest, tokenizer, path, other)
            name = other.facts.name
        return cls(draft != NONE, path, name, manifest.facts.vocabulary)

    def open(
        self,
        *,
        kv_tokens: int,
        max_rows: int,
        max_sequences: int,
        tune: bool,
        cache: Path | None,
        does_without: bool = False,
        progress: Progress = silent,
    ) -> Drafter | None:
        """A drafter for one head, or None if none is wanted; see DraftModel.start.

        Args:
            kv_tokens: Of the draft model.
            max_rows: Of the draft model.
            max_sequences: Of the draft model.
            tune: Of the draft model.
            cache: Of the draft model.
            does_without: A draft model that does not load leaves a drafter without it, which says so.
            progress: Told how loading goes.

        Raises:
            StageError: the draft model does not load.
        """
        if not self.is_on:
            return None
        if self.package is None:
            return NgramDrafter()
        try:
            model: Drafter = DraftModel.start(
                self.package,
                self.vocabulary,
                kv_tokens=kv_tokens,
                max_rows=max_rows,
                max_sequences=max_sequences,
                tune=tune,
                cache=cache,
                progress=progress,
            )
        except StageError as error:
            if not does_without:
                raise
            _log.warning("the draft %s did not load: %s", self.name, error)
            model = _NotLoaded(self.name, str(error))
        return Cascade(NgramDrafter(), model)


class _NotLoaded:
    """Stands where a draft model would be."""

    def __init__(self, name: str, why: str) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.facts = DrafterFacts(name, why)

    def guess(self, text: DraftText, count: int, is_free: bool = False) -> Sequence[int]:
        return ()

    def kind(self, key: str) -> str:
        return MODEL

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None: ...

    def cost_ms(self, count: int) -> float:
        return 0.0

    def close(self) -> None: ...
