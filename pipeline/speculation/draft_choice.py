"""Which drafter a model gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.speculation import same_tokenizer
from pipeline.speculation.cascade import Cascade
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.draft_run import DraftRun
from pipeline.speculation.drafter import MODEL, Drafter, DrafterFacts, DraftText, Want
from pipeline.speculation.ngram import NgramDrafter
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError
from shards.manifest import Manifest
from shards.progress import Progress, silent

NONE, NGRAM, AUTO = "none", "ngram", "auto"


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """What was asked for, checked; it opens a drafter for each head."""

    is_on: bool
    package: Path | None
    """Of the draft model that guesses too."""
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

    def open(self, run: DraftRun, progress: Progress = silent) -> Drafter | None:
        """A drafter for one head, or None if none is wanted.

        Args:
            run: How the draft model runs, if there is one.
            progress: Told how loading goes.

        Raises:
            PackageError: the package of the draft model cannot be read any more.
            StageError: the draft model does not load.
        """
        if self.package is None:
            return NgramDrafter() if self.is_on else None
        return beside_lookup(DraftModel.start(self.package, self.vocabulary, run, progress))

    def not_loaded(self, why: str) -> Drafter:
        """What stands where the draft model would be, and says why it is not there."""
        return _NotLoaded(self.name, why)


def beside_lookup(model: Drafter) -> Drafter:
    """A drafter that looks up what comes free, and asks a draft model for the rest."""
    return Cascade(NgramDrafter(), model)


class _NotLoaded:
    """Stands where a draft model would be."""

    def __init__(self, name: str, why: str) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.facts = DrafterFacts(name, why)

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int]:
        return ()

    def kind(self, key: str) -> str:
        return MODEL

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None: ...

    def cost_ms(self, count: int) -> float:
        return 0.0

    def close(self) -> None: ...
