"""The tail's sampler: logits in, tokens out.

The token of a row depends on that row, its sequence's `Sampling` and the tokens before it, never on the other rows of
the batch, nor on whether its own token was guessed: rows of guesses are sampled like any others, up to the first that
was wrong. So what is sampled is the same text with guesses and without, at any temperature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline import noise
from pipeline.messages import Fork, Open, Sampling, Token, Verify
from shards.errors import StageError
from shards.runtime import SequenceRows

Row = NDArray[np.float32]
"""Logits [vocabulary], or logits divided by the temperature with the largest at 0."""

_GREEDY_BELOW = 1e-5
"""Temperatures below this are 0: logits 3e-4 apart already outweigh any noise, and nothing can overflow."""
_GROUP = 64
"""Tokens that share a maximum in the search for the k-th largest."""
_BINS = 1024
_LIKELY = np.float32(-8.0)
"""Where a nucleus is looked for first, in scaled logits below the likeliest."""
_NEGLIGIBLE = 32.0
"""A token this far below the likeliest, in scaled logits, weighs 1e-14 of it."""


class Sampler:
    """Samples the sequences of one tail. Used by one thread only.

    Args:
        vocabulary: Token ids there are.
        ids: The token of each column of the logits, ascending, where the head knows only some. What is sampled depends
            on the token alone, not on its column.
    """

    def __init__(self, vocabulary: int, ids: NDArray[np.int32] | None = None) -> None:
        self._vocabulary, self._ids = vocabulary, ids
        self._width = vocabulary if ids is None else len(ids)
        self._spread = noise.spread(np.arange(vocabulary) if ids is None else ids)
        self._columns: NDArray[np.intp] | None = None
        """The column of each token, -1 where there is none; None: they are the same."""
        if ids is not None:
            self._columns = np.full(vocabulary, -1, np.intp)
            self._columns[ids] = np.arange(len(ids))
        self._sequences: dict[int, _Sequence] = {}

    def open(self, op: Open) -> None:
        """Learn how to sample a sequence; opening again replaces what was known of it.

        Raises:
            StageError: the history has ids outside the vocabulary.
        """
        history = None
        if op.sampling.needs_history:
            if op.history and not 0 <= min(op.history) <= max(op.history) < self._vocabulary:
                raise StageError(
                    f"its history has token ids outside 0 to {self._vocabulary - 1}",
                    where=f"sequence {op.sequence}",
                    hint="Ask with ids of this model's tokenizer.",
                )
            history = _History(op.history, op.prompt)
        self._sequences[op.sequence] = _Sequence(op.sampling, history)

    def fork(self, op: Fork) -> None:
        """Let the target begin as the source did, unless its own Open has come already."""
        source = self._sequences.get(op.source)
        if source is None or op.target in self._sequences:
            return
        history = source.history
        self.open(
            Open(
                op.target,
                source.sampling,
                tuple(history.tokens[: op.length]) if history else (),
                min(history.prompt, op.length) if history else 0,
            )
        )

    def free(self, sequence: int) -> None:
        """Forget a sequence; unknown ones are ignored."""
        self._sequences.pop(sequence, None)

    def expects(self, verify: Verify, position: int) -> bool:
        """Whether rows of guesses, the first at `position`, go on from what was sampled last for their sequence."""
        sequence = self._sequences.get(verify.sequence)
        if sequence is None or sequence.last is None:
            return False
        return sequence.last.position == position and verify.tokens[0] == sequence.last.token

    def sample(
        self, rows: Sequence[SequenceRows], logits: NDArray[np.float32], verifies: Sequence[Verify] = ()
    ) -> list[Token]:
        """Draw one token per row of logits, of a sequence with guesses as long as they are right.

        Args:
            rows: The sequences of the step, in order.
            logits: [sum of `sample`, width]: the last `sample` rows of each. Not changed.
            verifies: Of the sequences with guesses; each is expected (see `expects`).

        Raises:
            StageError: a sequence is not open, its earlier tokens are not known here, its logits are not finite, or
                the number of rows is not what the sequences want.
        """
        wanted = sum(r.sample for r in rows)
        if logits.shape != (wanted, self._width):
            raise StageError(
                f"logits of shape {logits.shape} for {wanted} rows over {self._width} tokens",
                where="sampler",
                hint="This is a defect of edge-agent: please report it.",
            )
        likeliest = logits.argmax(axis=1) if wanted else np.empty(0, np.int64)
        guesses = {verify.sequence: verify.tokens for verify in verifies}
        tokens: list[Token] = []
        start = 0
        for r in rows:
            if not r.sample:
                continue
            sequence = self._sequence_at(r)
            first = r.past + r.count - r.sample
            guessed = guesses.get(r.sequence)
            for i in range(r.sample):
                if guessed is not None and i and guessed[i] != tokens[-1].token:
                    break
                position, row, top = first + i + 1, logits[start + i], int(likeliest[start + i])
                if not math.isfinite(row[top]):  # argmax answers NaN where there is one
                    raise StageError(
                        f"the logits before position {position} are not finite (the largest is {row[top]})",
                        where=f"sequence {r.sequence}",
                        hint="The model overflowed on this device: try mode exact, or another device.",
                    )
                tokens.append(self._draw(r.sequence, sequence, position, row, top))
            sequence.last = tokens[-1]
            start += r.sample
        return tokens

    def _sequence_at(self, rows: SequenceRows) -> _Sequence:
        """The sequence, rolled back to what came before its first sampled row."""
        sequence = self._sequences.get(rows.sequence)
        if sequence is None:
            raise StageError(
                "the tail does not know how to sample it",
                where=f"sequence {rows.sequence}",
                hint="Open it before its first step.",
            )
        if sequence.history is not None:
            needed = rows.past + rows.count - rows.sample + 1
            sequence.history.truncate(needed)
            if len(sequence.history.tokens) < needed:
                raise StageError(
                    f"the tail knows {len(sequence.history.tokens)} of the {needed} tokens its penalties need",
                    where=f"sequence {rows.sequence}",
                    hint="Open it again with its history.",
                )
        return sequence

    def _draw(self, number: int, sequence: _Sequence, position: int, raw: Row, likeliest: int) -> Token:
        sampling, history = sequence.sampling, sequence.history
        row = raw
        if history is not None or sampling.logit_bias:
            row = _penalised(raw, sampling, history, self._columns)
            likeliest = int(row.argmax())
        if sampling.temperature < _GREEDY_BELOW:
            column = likeliest
        else:
            column = self._pick(sampling, position, (row - row[likeliest]) / np.float32(sampling.temperature))
        token = column if self._ids is None else int(self._ids[column])
        if history is not None:
            history.append(token)
        if sampling.logprobs is None:
            return Token(number, position, token)
        logprob, top = _logprobs(raw, column, sampling.logprobs)
        if self._ids is not None:
            top = tuple((int(self._ids[i]), value) for i, value in top)
        return Token(number, position, token, logprob, top)

    def _pick(self, sampling: Sampling, position: int, scaled: Row) -> int:
        candidates = _candidates(scaled, sampling)
        if candidates is None:
            return noise.pick(sampling.seed, position, scaled, self._spread)
        if len(candidates) == 1:
            return int(candidates[0])
        return int(candidates[noise.pick(sampling.seed, position, scaled[candidates], self._spread[candidates])])


class _History:
    """The tokens of a sequence, and how often each has come."""

    def __init__(self, tokens: Sequence[int], prompt: int) -> None:
        self.tokens = list(tokens)
        self.prompt = prompt
        self.seen = Counter(self.tokens)
        """Times in prompt and answer; only tokens that came."""
        self.answered = Counter(self.tokens[prompt:])
        """Times in the answer; only tokens that came."""

    def append(self, token: int) -> None:
        if len(self.tokens) >= self.prompt:
            self.answered[token] += 1
        self.seen[token] += 1
        self.tokens.append(token)

    def truncate(self, length: int) -> None:
        while len(self.tokens) > length:
            token = self.tokens.pop()
            counters = (self.seen, self.answered) if len(self.tokens) >= self.prompt else (self.seen,)
            for counter in counters:
                counter[token] -= 1
                if not counter[token]:
                    del counter[token]


@dataclass(slots=True)
class _Sequence:
    sampling: Sampling
    history: _History | None
    last: Token | None = None
    """Sampled last."""


def _penalised(raw: Row, sampling: Sampling, history: _History | None, columns: NDArray[np.intp] | None) -> Row:
    """A copy of the logits with bias and penalties applied, as far as there are `columns` of the tokens.

    Repetition as in CTRL (Keskar et al., 2019; Hugging Face), presence and frequency as in the OpenAI API.
    """
    row = raw.copy()
    for token, bias in sampling.logit_bias.items():
        if (column := token if columns is None else int(columns[token])) >= 0:
            row[column] += np.float32(bias)
    if history is None:
        return row
    if sampling.repetition_penalty != 1.0:
        penalty = np.float32(sampling.repetition_penalty)
        ids = np.fromiter(history.seen, np.intp, len(history.seen))
        if columns is not None:
            ids = columns[ids]
            ids = ids[ids >= 0]
        values = row[ids]
        row[ids] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids = np.fromiter(history.answered, np.intp, len(history.answered))
        counts = np.fromiter(history.answered.values(), np.float32, len(history.answered))
        if columns is not None:
            ids = columns[ids]
            ids, counts = ids[ids >= 0], counts[ids >= 0]
        row[ids] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * counts
    return row


def _candidates(scaled: Row, sampling: Sampling) -> NDArray[np.intp] | None:
    """Ascending ids that top-k, top-p and min-p leave, in that order; None: all."""
    ids = None
    if 0 < sampling.top_k < len(scaled):
        ids = np.flatnonzero(scaled >= _kth_largest(scaled, sampling.top_k))
    if sampling.top_p < 1.0:
        ids = _nucleus(scaled, sampling.top_p) if ids is None else ids[_nucleus(scaled[ids], sampling.top_p)]
    if sampling.min_p > 0.0:
        bound = np.float32(math.log(sampling.min_p))
        ids = np.flatnonzero(scaled >= bound) if ids is None else ids[scaled[ids] >= bound]
    return ids


def _nucleus(scaled: Row, top_p: float) -> NDArray[np.intp]:
    """Ascending indices of the fewest tokens, likeliest first, whose probabilities reach `top_p` together.

    Nucleus sampling (Holtzman et al., 2020); lower ids first on ties. Tokens are summed in narrow bins of likelihood,
    and only the bin in which `top_p` is reached is sorted.
    """
    weights = np.exp(scaled)
    target = top_p * float(weights.sum(dtype=np.float64))
    pool = np.flatnonzero(scaled >= _LIKELY)
    if weights[pool].sum(dtype=np.float64) < target:
        pool = np.arange(len(scaled))
    scaled, weights = scaled[pool], weights[pool]
    span = min(max(-float(scaled.min()), 1e-6), _NEGLIGIBLE)
    bins = np.minimum(scaled * np.float32(-(_BINS - 1) / span), _BINS - 1).astype(np.int32)
    mass = np.bincount(bins, weights).cumsum()
    last = int(mass.searchsorted(target))
    kept = bins < last
    ids = np.flatnonzero(bins == last)
    ids = ids[np.argsort(-scaled[ids], kind="stable")]
    reached = (mass[last - 1] if last else 0.0) + weights[ids].cumsum(dtype=np.float64)
    kept[ids[: int(reached.searchsorted(target)) + 1]] = True
    chosen: NDArray[np.intp] = pool[kept]
    return chosen


def _kth_largest(values: Row, k: int) -> np.float32:
    """The k-th largest value: exact, and much faster than a partition of everything when k is small.

    The k-th largest of the maxima of groups is a lower bound, so only values from there up are partitioned.
    """
    groups = len(values) // _GROUP
    if 2 * k <= groups:
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        values = values[values >= np.partition(maxima, groups - k)[groups - k]]
    result: np.float32 = np.partition(values, len(values) - k)[len(values) - k]
    return result


def _logprobs(raw: Row, column: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log probability of a column and of the `count` likeliest (the first ones on ties), by the model alone."""
    peak = float(raw.max())
    total = peak + math.log(np.exp(raw - np.float32(peak)).sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    count = min(count, len(raw))
    if count:
        ids = np.flatnonzero(raw >= _kth_largest(raw, count))
        ids = ids[np.argsort(-raw[ids], kind="stable")][:count]
        top = tuple((int(i), float(raw[i]) - total) for i in ids)
    return float(raw[column]) - total, top
