"""Drafts, side by side on the same recorded tokens: what each is worth, and what trimming and quantising cost.

The labels are the tokens that were sampled, not what a second computation of the model would find likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.bench.report import Report, Target, at_least, at_most
from agent.capture.capture_file import Captured, CapturedText
from agent.capture.records import CaptureError
from agent.draft_eval.guesses import DEPTH, STRIDE, DraftGuesses
from agent.draft_eval.scores import Scores, score
from shards import manifest as manifests
from shards.errors import ConfigurationError
from shards.manifest import ModelFacts
from shards.progress import Progress

WRONG_LABELS, NO_CONTEXT = 0.5, 0.75
"""The most of its agreement that a draft may keep where it cannot be right, and where it sees one token only."""

SAMPLED_AGAIN = 0.8
"""The least of the tokens that must come again: a fast mode rounds differently, a wrong row is right by chance only."""


@dataclass(frozen=True, slots=True)
class Side:
    """A draft and what it scored."""

    name: str
    package_id: str
    facts: ModelFacts
    scores: Scores
    right: NDArray[np.bool_] = field(repr=False)
    """Of all tokens, in their order: whether the guess in true context was right."""

    @property
    def stored(self) -> str:
        """How the weights are stored, in a word or two."""
        return " + ".join(dict.fromkeys(kind.split(",")[0].split()[0] for kind in self.facts.weights.split(" + ")))

    @property
    def weights(self) -> frozenset[str]:
        """How they are stored, whatever has most bytes."""
        return frozenset(self.facts.weights.split(" + "))


@dataclass(frozen=True, slots=True)
class Effect:
    """What one change does to a draft that stays the same otherwise."""

    what: str
    before: str
    after: str
    agreement: float
    """Difference."""
    lost: float
    """Share of tokens that only the draft before guesses."""
    won: float
    """Share of tokens that only the changed draft guesses."""
    expected_accepted: float
    """Difference."""


def evaluate(
    captured: Captured,
    drafts: Sequence[Path],
    *,
    most_texts: int | None = None,
    stride: int = STRIDE,
    threads: int | None = None,
    progress: Progress,
) -> list[Side]:
    """Score drafts on a recording.

    Raises:
        CaptureError: there are no texts in it of DEPTH tokens.
        ConfigurationError: a draft has another vocabulary than the recorded model.
        PackageError, GraphError, StageError, CapacityError: a draft cannot be loaded.
    """
    texts = captured.texts[:most_texts]
    if not any(len(text.tokens) >= DEPTH for text in texts):
        raise CaptureError(
            f"no recorded text has {DEPTH} tokens", where=captured.header.model, hint="Record longer answers."
        )
    for package in drafts:
        found, wanted = manifests.read(package).facts.vocabulary, captured.header.vocabulary
        if found != wanted:
            raise ConfigurationError(
                f"the draft has {found} tokens, the recorded model {wanted}: it has another tokenizer",
                where=str(package),
                hint="A draft has the tokenizer of the model it guesses for.",
            )
    return [
        _side(
            package, texts, stride, threads, lambda what, *rest, name=package.name: progress(f"{name}: {what}", *rest)
        )
        for package in drafts
    ]


def _side(package: Path, texts: Sequence[CapturedText], stride: int, threads: int | None, progress: Progress) -> Side:
    manifest = manifests.read(package)
    labels = [text.tokens for text in texts]
    with DraftGuesses(package, texts, threads) as draft:
        true = draft.in_true_context(texts, progress)
        own = draft.on_its_own(texts, progress, stride)
        alone = draft.without_context(texts, progress)
        scores = score(labels, true, own, alone, draft.known, stride)
    right = np.concatenate([guess == label for guess, label in zip(true, labels, strict=True)])
    return Side(package.name, manifest.package_id, manifest.facts, scores, right)


def effects(sides: Sequence[Side]) -> list[Effect]:
    """What trimming does between drafts whose weights are stored alike, and other weights between heads alike."""
    found = []
    for before, after in permutations(sides, 2):
        b, a = before.facts, after.facts
        if (b.name, b.layers, b.hidden_size) != (a.name, a.layers, a.hidden_size):
            continue
        if before.weights == after.weights and (a.draft_vocabulary or b.vocabulary) < (
            b.draft_vocabulary or b.vocabulary
        ):
            found.append(_effect(f"{b.logits} → {a.logits} tokens", before, after))
        elif b.draft_vocabulary == a.draft_vocabulary and _bits(after) < _bits(before):
            found.append(_effect(f"{before.stored} → {after.stored}", before, after))
    return found


def _bits(side: Side) -> int:
    """The fewest bits that weights are stored in."""
    return min(int("".join(filter(str.isdigit, kind.split()[0].split(",")[0])) or 32) for kind in side.weights)


def _effect(what: str, before: Side, after: Side) -> Effect:
    return Effect(
        what,
        before.name,
        after.name,
        after.scores.agreement - before.scores.agreement,
        float((before.right & ~after.right).mean()),
        float((after.right & ~before.right).mean()),
        after.scores.expected_accepted - before.scores.expected_accepted,
    )


def report(
    captured: Captured, sides: Sequence[Side], settings: dict[str, Any], sampled_again: float | None = None
) -> Report:
    """For JSON: the figures of all sides, the effects, and as targets the controls, and what was `sampled_again`."""
    made = Report("draft-eval", {**settings, "recording": {**asdict(captured.header), **asdict(captured.end)}})
    made.targets = [target for side in sides for target in controls(side)]
    if sampled_again is not None:
        made.targets.append(at_least("tokens that come again from their hidden states", sampled_again, SAMPLED_AGAIN))
    made.results = [
        {
            "draft": side.name,
            "package_id": side.package_id,
            "layers": side.facts.layers,
            "weights": side.facts.weights,
            "tokens_in_head": side.facts.logits,
            "expected_accepted": side.scores.expected_accepted,
            **asdict(side.scores),
        }
        for side in sides
    ]
    made.runs = [asdict(effect) for effect in effects(sides)]
    return made


def controls(side: Side) -> list[Target]:
    """What must come out low if the figures mean anything."""
    scores = side.scores
    return [
        at_most(
            f"{side.name}: right about the token after, of its agreement", _part(scores.shifted, scores), WRONG_LABELS
        ),
        at_most(
            f"{side.name}: right about another text, of its agreement", _part(scores.other_text, scores), WRONG_LABELS
        ),
        at_most(f"{side.name}: right without context, of its agreement", _part(scores.no_context, scores), NO_CONTEXT),
    ]


def _part(share: float, scores: Scores) -> float:
    return share / scores.agreement if scores.agreement else 1.0
