"""What a draft guesses on recorded texts, drawn with the noise that the tokens themselves were drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.capture.capture_file import CapturedText
from pipeline.messages import Open
from pipeline.sampler import Sampler
from shards import manifest as manifests
from shards.draft_vocabulary import token_ids
from shards.loading import load_stage
from shards.progress import Progress
from shards.runtime import Batch, SequenceRows, StageConfig

DEPTH = 8
"""Guesses that follow one another."""

STRIDE = 8
"""Of the tokens of a text, each so many is where a draft guesses on from its own guesses."""

_ROWS = 128
"""Of a step."""
_TOGETHER = 16
"""Texts that are guessed on with at the same time."""


class DraftGuesses:
    """A draft at work on recorded texts, in f32 whatever its weights are stored in. A context manager.

    Args:
        package: Of the draft.
        texts: All texts it will be asked about.
        threads: Inference threads; None: the engine chooses.

    Raises:
        PackageError, GraphError, StageError, CapacityError: it cannot be loaded.
    """

    def __init__(self, package: Path, texts: Sequence[CapturedText], threads: int | None = None) -> None:
        facts = manifests.read(package).facts
        lengths = sorted(len(text.prompt) + len(text.tokens) + DEPTH for text in texts)
        room = sum(length + 64 for length in lengths[-_TOGETHER:])
        self._stage = load_stage(
            StageConfig(
                package=package,
                first_layer=0,
                end_layer=facts.layers,
                mode="exact",
                threads=threads,
                kv_tokens=max(room, 64 * _ROWS),
            )
        )
        self._vocabulary, self._ids = facts.vocabulary, token_ids(package)
        self._sampler = Sampler(facts.vocabulary, self._ids)

    def __enter__(self) -> DraftGuesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.close()

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which tokens the draft can guess at all, shape [vocabulary]."""
        known = np.full(self._vocabulary, self._ids is None)
        if self._ids is not None:
            known[self._ids] = True
        return known

    def in_true_context(self, texts: Sequence[CapturedText], progress: Progress) -> list[NDArray[np.int64]]:
        """For each token of each text, the guess behind all true tokens before it: [tokens of the text]."""
        guesses = []
        for done, text in enumerate(texts):
            progress("guessing in true context", done, len(texts))
            first, found = len(text.prompt), np.empty(len(text.tokens), np.int64)
            tokens = _all(text)[:-1]
            for past in range(0, len(tokens), _ROWS):
                rows = tokens[past : past + _ROWS]
                end = past + len(rows)
                sample = max(0, min(len(rows), end - first + 1))
                logits = self._stage.step(Batch((SequenceRows(0, past, len(rows), sample),), rows))
                for position, row in zip(range(end - sample + 1, end + 1), logits, strict=True):
                    found[position - first] = self._draw(text, 0, position, row, _all(text)[:position])
            self._stage.free(0)
            guesses.append(found)
        return guesses

    def without_context(self, texts: Sequence[CapturedText], progress: Progress) -> list[NDArray[np.int64]]:
        """For each token of each text, the guess behind the one token before it, as if nothing else had been."""
        guesses = [np.empty(len(text.tokens), np.int64) for text in texts]
        wanted: dict[int, list[tuple[int, int]]] = {}
        for number, text in enumerate(texts):
            for index, read in enumerate(_all(text)[len(text.prompt) - 1 : -1].tolist()):
                wanted.setdefault(read, []).append((number, index))
        reads = list(wanted)
        for start in range(0, len(reads), _ROWS // 2):
            progress("guessing without context", start, len(reads))
            some = reads[start : start + _ROWS // 2]
            rows = tuple(SequenceRows(sequence, 0, 1, 1) for sequence in range(len(some)))
            logits = self._stage.step(Batch(rows, np.array(some, np.int64)))
            for read, row in zip(some, logits, strict=True):
                for number, index in wanted[read]:
                    text = texts[number]
                    position = len(text.prompt) + index
                    guesses[number][index] = self._draw(text, 0, position, row, _all(text)[:position])
        for sequence in range(_ROWS // 2):
            self._stage.free(sequence)
        return guesses

    def on_its_own(
        self, texts: Sequence[CapturedText], progress: Progress, stride: int = STRIDE
    ) -> list[NDArray[np.int64]]:
        """From each stride-th token of each text on, DEPTH guesses that each follow the ones before: [anchors, DEPTH].

        Anchors with fewer than DEPTH true tokens from there on are left out.
        """
        guesses = []
        for start in range(0, len(texts), _TOGETHER):
            progress("guessing on its own", start, len(texts))
            guesses += self._together(texts[start : start + _TOGETHER], stride)
        return guesses

    def _together(self, texts: Sequence[CapturedText], stride: int) -> list[NDArray[np.int64]]:
        anchors = [anchors_of(text, stride) for text in texts]
        found = [np.empty((len(each), DEPTH), np.int64) for each in anchors]
        cached = [0] * len(texts)
        for turn in range(max(map(len, anchors), default=0)):
            active = [number for number, each in enumerate(anchors) if turn < len(each)]
            contexts = {n: _all(texts[n])[: len(texts[n].prompt) + anchors[n][turn]] for n in active}
            for number in active:  # all but the last token: that is the first row of the guessing
                self._fill(number, contexts[number], cached[number])
                cached[number] = len(contexts[number]) - 1
            for depth in range(DEPTH):
                rows = tuple(SequenceRows(n, len(contexts[n]) - 1, 1, 1) for n in active)
                logits = self._stage.step(Batch(rows, np.array([contexts[n][-1] for n in active], np.int64)))
                for number, row in zip(active, logits, strict=True):
                    position, before = len(contexts[number]), contexts[number]
                    found[number][turn, depth] = self._draw(texts[number], number, position, row, before)
                    contexts[number] = np.append(before, found[number][turn, depth])
        for number in range(len(texts)):
            self._stage.free(number)
        return found

    def _fill(self, sequence: int, tokens: NDArray[np.int64], past: int) -> None:
        """Put tokens, but for the last, into the cache behind the first `past`."""
        for start in range(past, len(tokens) - 1, _ROWS):
            rows = tokens[start : min(start + _ROWS, len(tokens) - 1)]
            self._stage.step(Batch((SequenceRows(sequence, start, len(rows)),), rows))

    def _draw(
        self, text: CapturedText, sequence: int, position: int, row: NDArray[np.float32], before: NDArray[np.int64]
    ) -> int:
        """The token at a position, drawn as the recorded model draws it."""
        history = tuple(before.tolist()) if text.sampling.needs_history else ()
        self._sampler.open(Open(sequence, text.sampling, history, min(len(text.prompt), len(history))))
        (token,) = self._sampler.sample([SequenceRows(sequence, position - 1, 1, 1)], row[None])
        return token.token


def anchors_of(text: CapturedText, stride: int) -> range:
    """Tokens of a text from which on DEPTH can be guessed, each stride-th."""
    return range(0, len(text.tokens) - DEPTH + 1, stride)


def _all(text: CapturedText) -> NDArray[np.int64]:
    """Prompt and answer."""
    return np.concatenate([np.array(text.prompt, np.int64), text.tokens.astype(np.int64)])
