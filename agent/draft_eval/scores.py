"""Figures of one draft: how often its guesses are what was sampled, and how far that carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.draft_eval.guesses import DEPTH

Tokens = Sequence[NDArray[np.integer]]
"""Of each text."""

FIXED = (4, 8)
"""Numbers of guesses that cycles are counted for."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares are 0..1. Positions are 1..DEPTH, counted from where guessing begins, which is tried everywhere in a text
    that DEPTH tokens follow."""

    tokens: int
    agreement: float
    """Guesses in true context that are right."""
    in_true_context: tuple[float, ...]
    """By position: right, behind true tokens."""
    on_its_own: tuple[float, ...]
    """By position: right, behind the draft's own guesses, right or wrong."""
    accepted: tuple[float, ...]
    """By position: right, and all before it."""
    per_cycle: dict[int, float]
    """Tokens of a verify with so many guesses each time: those accepted, and the one the model adds."""
    coverage: float
    """Tokens that the draft can guess at all."""
    shifted: float
    """Control: agreement with the token after the right one."""
    other_text: float
    """Control: agreement with the token at that place in another text."""
    no_context: float
    """Control: agreement of guesses that saw one token only."""

    @property
    def expected_accepted(self) -> float:
        """Of DEPTH guesses."""
        return sum(self.accepted)


def score(labels: Tokens, true: Tokens, own: Sequence[NDArray[np.integer]], alone: Tokens, known: NDArray[np.bool_],
          stride: int) -> Scores:  # fmt: skip
    """Score one draft.

    Args:
        labels: What was sampled, [tokens] of each text.
        true: Guesses in true context, likewise.
        own: Guesses behind the draft's own, [anchors, DEPTH] of each text; anchors are `stride` tokens apart.
        alone: Guesses without context, as `true`.
        known: Which tokens the draft can guess, [vocabulary].
        stride: See `own`.
    """
    right = [guess == label for guess, label in zip(true, labels, strict=True)]
    runs = np.concatenate([_windows(each) for each in right])
    targets = [_windows(label)[::stride] for label in labels]
    alone_right = np.concatenate([a == label for a, label in zip(alone, labels, strict=True)])
    own_right = np.concatenate([guess == target for guess, target in zip(own, targets, strict=True)])
    return Scores(
        tokens=sum(map(len, labels)),
        agreement=_share(np.concatenate(right)),
        in_true_context=tuple(runs.mean(0).tolist()),
        on_its_own=tuple(own_right.mean(0).tolist()),
        accepted=tuple(np.logical_and.accumulate(runs, axis=1).mean(0).tolist()),
        per_cycle={count: _per_cycle(right, count) for count in FIXED},
        coverage=_share(known[np.concatenate(labels)]),
        shifted=_share(np.concatenate([g[:-1] == label[1:] for g, label in zip(true, labels, strict=True)])),
        other_text=_share(_crossed(true, labels)),
        no_context=_share(alone_right),
    )


def _windows(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Each run of DEPTH values, [runs, DEPTH]."""
    if len(values) < DEPTH:
        return np.empty((0, DEPTH), values.dtype)
    return np.lib.stride_tricks.sliding_window_view(values, DEPTH)


def _crossed(guesses: Tokens, labels: Tokens) -> NDArray[np.bool_]:
    """Guesses on each text against the tokens of the next one."""
    others = [*labels[1:], *labels[:1]]
    found = []
    for guess, other in zip(guesses, others, strict=True):
        size = min(len(guess), len(other))
        found.append(guess[:size] == other[:size])
    return np.concatenate(found) if len(labels) > 1 else np.zeros(1, np.bool_)


def _per_cycle(right: Sequence[NDArray[np.bool_]], count: int) -> float:
    """Tokens of a verify if the texts are gone through with `count` guesses each time."""
    tokens = cycles = 0
    for each in right:
        place = 0
        while place < len(each):
            some = each[place : place + count]
            accepted = int(some.argmin()) if not some.all() else len(some)
            place += accepted + 1
            cycles += 1
        tokens += len(each)
    return tokens / max(cycles, 1)


def _share(right: NDArray[np.bool_]) -> float:
    return float(right.mean()) if right.size else 0.0
