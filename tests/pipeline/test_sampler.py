from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from single_rows import Logits, decode, draw

from pipeline import noise
from pipeline.messages import Fork, Open, Sampling, Token
from pipeline.sampler import Sampler
from shards.errors import StageError
from shards.runtime import SequenceRows

# A plain reference: everything in float64, sorted in full, one token at a time.


def reference_logits(row: Logits, sampling: Sampling, history: Sequence[int], prompt: int) -> NDArray[np.float64]:
    out = row.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        out[token] += bias
    for token in set(history):
        out[token] = out[token] * (1 / sampling.repetition_penalty if out[token] > 0 else sampling.repetition_penalty)
    for token, count in Counter(history[prompt:]).items():
        out[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return out


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max())
    return e / e.sum()


def reference_candidates(scaled: NDArray[np.float64], sampling: Sampling, nudge: float) -> list[int]:
    """Hugging Face's warpers one after another; `nudge` moves the bounds, to see whether rounding could matter."""
    kept = scaled.copy()
    if sampling.top_k:
        kth = np.sort(kept)[::-1][min(sampling.top_k, len(kept)) - 1]
        kept[kept < kth] = -np.inf
    if sampling.top_p < 1:
        order = sorted(range(len(kept)), key=lambda i: (-kept[i], i))
        before = 0.0
        probabilities = softmax(kept)
        for rank, token in enumerate(order):
            if rank and before >= sampling.top_p + nudge:
                kept[token] = -np.inf
            before += probabilities[token]
    if sampling.min_p:
        probabilities = softmax(kept)
        kept[probabilities < (sampling.min_p + nudge) * probabilities.max()] = -np.inf
    return [i for i in range(len(kept)) if kept[i] > -np.inf]


def reference_token(
    row: Logits, sampling: Sampling, position: int, history: Sequence[int] = (), prompt: int = 0
) -> int | None:
    """The token, or None where rounding decides."""
    logits = reference_logits(row, sampling, history, prompt)
    if sampling.temperature == 0:
        best = np.sort(logits)[-2:]
        return None if len(best) > 1 and 0 < best[1] - best[0] < 1e-4 else int(logits.argmax())
    scaled = (logits - logits.max()) / sampling.temperature
    candidates = reference_candidates(scaled, sampling, 0.0)
    if any(reference_candidates(scaled, sampling, nudge) != candidates for nudge in (-1e-5, 1e-5)):
        return None
    scores = scaled + noise.gumbel(noise.bits(sampling.seed, position, noise.spread(np.arange(len(row)))))
    first, *rest = sorted(candidates, key=lambda i: -scores[i])
    return None if rest and scores[first] - scores[rest[0]] < 1e-3 else first


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 14, 40, 100_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.2]),
    logit_bias=st.dictionaries(st.integers(0, 4), st.sampled_from([-100.0, -1.0, 3.0]), max_size=3),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=300)
@given(SAMPLINGS, st.integers(0, 2**32 - 1), st.sampled_from([5, 37, 3000]), st.data())
def test_agrees_with_the_plain_reference(sampling: Sampling, seed: int, vocabulary: int, data: Any) -> None:
    random = np.random.default_rng(seed)
    row = (random.standard_normal(vocabulary) * data.draw(st.sampled_from([0.5, 3.0]))).astype(np.float32)
    if data.draw(st.booleans()):
        row = np.round(row)  # many ties
    history = [int(i) for i in random.integers(0, min(vocabulary, 40), data.draw(st.integers(0, 30)))]
    prompt = data.draw(st.integers(0, len(history)))
    position = len(history)
    assume(position > 0)
    expected = reference_token(row, sampling, position, history, prompt)
    assume(expected is not None)
    assert draw(sampling, row, position, history, prompt).token == expected


DISTRIBUTIONS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=2.5),
    Sampling(top_k=3),
    Sampling(top_p=0.8),
    Sampling(min_p=0.2),
    Sampling(temperature=1.5, top_k=5, top_p=0.9, min_p=0.1),
    Sampling(logit_bias={0: 2.0, 3: -100.0}),
]


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
def test_draws_have_the_right_frequencies(sampling: Sampling) -> None:
    row = np.array([0.0, 1.2, -1.0, 0.7, -2.5, 2.0, 0.3], np.float32)
    n = 6_000
    sampler = Sampler(len(row))
    for sequence in range(3):
        sampler.open(Open(sequence, replace(sampling, seed=sequence)))
    drawn = [decode(sampler, i % 3, 1 + i // 3, row).token for i in range(n)]
    counts = np.bincount(drawn, minlength=len(row))
    scaled = reference_logits(row, sampling, (), 0) / sampling.temperature
    candidates = reference_candidates(scaled, sampling, 0.0)
    assert set(np.flatnonzero(counts).tolist()) <= set(candidates)
    expected = softmax(scaled[candidates]) * n
    likely = expected > 1e-9
    chi_square = float(((counts[candidates] - expected)[likely] ** 2 / expected[likely]).sum())
    freedom = max(len(candidates) - 1, 1)
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    row = np.zeros(5000, np.float32)
    row[[70, 4000]] = 1.0
    assert draw(Sampling(temperature=0.0), row).token == 70
    assert draw(Sampling(temperature=0.0, top_k=5, top_p=0.1, logprobs=2), row).token == 70


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-6])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    row = np.array([1.0, 1.0000001, -np.inf, 0.0], np.float32)
    assert draw(Sampling(temperature=temperature), row).token == 1


def test_impossible_tokens_are_never_drawn() -> None:
    row = np.full(300, -np.inf, np.float32)
    row[[5, 250]] = [-3.0, -1.0]
    samplings = [Sampling(temperature=100.0), Sampling(top_k=50), Sampling(top_p=0.9999), Sampling(min_p=1e-9)]
    drawn = {draw(replace(s, seed=seed), row).token for s in samplings for seed in range(50)}
    assert drawn == {5, 250}


@given(SAMPLINGS, st.integers(0, 1000), st.permutations(range(4)))
def test_a_token_does_not_depend_on_the_batch(sampling: Sampling, seed: int, order: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((4, 400)) * 3).astype(np.float32)
    settings_of = [sampling, Sampling(temperature=0.0), Sampling(seed=seed), replace(sampling, logprobs=3)]
    history = tuple(int(i) for i in random.integers(0, 400, 12))
    together = Sampler(400)
    for i in range(4):
        together.open(Open(i, settings_of[i], history, 6))
    batch = [SequenceRows(i, 11, 1, 1) for i in order]
    tokens = together.sample(batch, rows[order])
    assert [t.sequence for t in tokens] == order
    for token in tokens:
        alone = Sampler(400)
        alone.open(Open(token.sequence, settings_of[token.sequence], history, 6))
        assert decode(alone, token.sequence, 12, rows[token.sequence]) == token


def generate(sampler: Sampler, sequence: int, start: int, rows: Logits) -> list[int]:
    return [decode(sampler, sequence, start + i, row).token for i, row in enumerate(rows)]


@given(SAMPLINGS, st.integers(0, 1000), st.integers(1, 9))
def test_a_replay_goes_on_with_the_same_tokens(sampling: Sampling, seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((10, 50)) * 2).astype(np.float32)
    prompt = (3, 4, 4)
    whole = Sampler(50)
    whole.open(Open(1, sampling, prompt, 3))
    answer = generate(whole, 1, 3, rows)
    again = Sampler(50)
    again.open(Open(8, sampling, (*prompt, *answer[:cut]), 3))
    assert generate(again, 8, 3 + cut, rows[cut:]) == answer[cut:]


@given(SAMPLINGS, st.integers(0, 1000), st.integers(0, 6))
def test_verify_rows_give_the_tokens_of_single_steps_whatever_was_rejected(
    sampling: Sampling, seed: int, rejected: int
) -> None:
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((12, 50)) * 2).astype(np.float32)
    prompt = (3, 4, 4, 9)
    single = Sampler(50)
    single.open(Open(1, sampling, prompt, 4))
    answer = generate(single, 1, 4, rows)
    verify = Sampler(50)
    verify.open(Open(1, sampling, prompt, 4))
    # the prompt's last chunk and then six guesses at once; some of them are rolled back and sampled again
    assert [t.token for t in verify.sample([SequenceRows(1, 1, 3, 1)], rows[:1])] == answer[:1]
    guessed = verify.sample([SequenceRows(1, 4, 6, 6)], rows[1:7])
    assert [(t.position, t.token) for t in guessed] == list(zip(range(5, 11), answer[1:7], strict=True))
    kept = 7 - rejected
    rest = verify.sample([SequenceRows(1, 3 + kept, 12 - kept, 12 - kept)], rows[kept:])
    assert [t.token for t in rest] == answer[kept:]


def test_chunks_without_logits_leave_the_history_alone() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=1e6)
    sampler = Sampler(4)
    sampler.open(Open(1, sampling, (3, 2, 1), 3))
    assert sampler.sample([SequenceRows(1, 0, 2, 0)], np.empty((0, 4), np.float32)) == []
    row = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    assert sampler.sample([SequenceRows(1, 2, 1, 1)], row[None])[0] == Token(1, 3, 0)


def test_a_fork_begins_with_the_tokens_and_sampling_of_its_source() -> None:
    sampling = Sampling(temperature=0.0, frequency_penalty=2.0)
    row = np.array([1.0, 1.5, 0.0], np.float32)
    sampler = Sampler(3)
    sampler.open(Open(1, sampling, (0, 1), 1))
    assert decode(sampler, 1, 2, row).token == 0
    sampler.fork(Fork(1, 2, 2))
    sampler.fork(Fork(1, 3, 1))
    assert decode(sampler, 2, 2, row) == Token(2, 2, 0)
    assert decode(sampler, 3, 1, row) == Token(3, 1, 1)


@pytest.mark.parametrize("open_first", [False, True])
def test_the_open_that_comes_with_a_fork_wins(open_first: bool) -> None:
    sampler = Sampler(3)
    sampler.open(Open(1, Sampling(temperature=0.0)))
    own = Open(2, Sampling(temperature=0.0, logit_bias={2: 50.0}))
    if open_first:
        sampler.open(own)
    sampler.fork(Fork(1, 2, 0))
    if not open_first:
        sampler.open(own)
    assert decode(sampler, 2, 1, np.zeros(3, np.float32)).token == 2


def test_a_fork_of_what_the_tail_never_sampled_waits_for_its_open() -> None:
    sampler = Sampler(3)
    sampler.fork(Fork(1, 2, 32))
    with pytest.raises(StageError, match="sequence 2"):
        decode(sampler, 2, 1, np.zeros(3, np.float32))


def test_freeing_forgets_and_is_harmless_twice() -> None:
    sampler = Sampler(3)
    sampler.open(Open(1, Sampling()))
    sampler.free(1)
    sampler.free(1)
    with pytest.raises(StageError, match="sequence 1: the tail does not know how to sample it"):
        decode(sampler, 1, 1, np.zeros(3, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, "all -inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_name_the_sequence(bad: float | str, temperature: float) -> None:
    sampler = Sampler(100)
    for sequence in (1, 2):
        sampler.open(Open(sequence, Sampling(temperature=temperature)))
    rows = np.zeros((2, 100), np.float32)
    if bad == "all -inf":
        rows[1] = -np.inf
    else:
        rows[1, 60] = bad
    with pytest.raises(StageError, match="sequence 2: the logits before position 8 are not finite"):
        sampler.sample([SequenceRows(1, 3, 1, 1), SequenceRows(2, 7, 1, 1)], rows)


def test_a_gap_in_the_history_is_an_error_not_a_guess() -> None:
    sampler = Sampler(4)
    sampler.open(Open(6, Sampling(presence_penalty=1.0), (0, 1), 2))
    with pytest.raises(StageError, match="sequence 6: the tail knows 2 of the 5 tokens"):
        decode(sampler, 6, 5, np.zeros(4, np.float32))


def test_a_history_outside_the_vocabulary_is_refused() -> None:
    sampler = Sampler(4)
    for token in (-1, 4):
        with pytest.raises(StageError, match="sequence 6: its history has token ids outside 0 to 3"):
            sampler.open(Open(6, Sampling(presence_penalty=1.0), (0, token), 2))


def test_logits_of_another_shape_are_refused() -> None:
    sampler = Sampler(4)
    sampler.open(Open(1, Sampling()))
    for shape in ((2, 4), (1, 5), (0, 4)):
        with pytest.raises(StageError, match="logits of shape"):
            sampler.sample([SequenceRows(1, 0, 3, 1)], np.zeros(shape, np.float32))


@given(st.integers(0, 10_000), st.integers(0, 20), st.sampled_from([0.0, 1.0]), st.sampled_from([7, 2500]))
def test_logprobs_are_the_raw_models(seed: int, count: int, temperature: float, vocabulary: int) -> None:
    row = (np.random.default_rng(seed).standard_normal(vocabulary) * 3).astype(np.float32)
    row = np.round(row * 4) / 4  # ties
    sampling = Sampling(temperature=temperature, seed=seed, logprobs=count, logit_bias={1: 100.0, 2: -100.0}, top_k=2)
    token = draw(sampling, row)
    logprobs = np.log(softmax(row.astype(np.float64)))
    assert token.token == 1
    assert token.logprob == pytest.approx(logprobs[1], abs=1e-5)
    likeliest = sorted(range(vocabulary), key=lambda i: (-row[i], i))[:count]
    assert [i for i, _ in token.top] == likeliest
    assert [value for _, value in token.top] == pytest.approx(logprobs[likeliest].tolist(), abs=1e-5)


def test_logprobs_only_where_asked() -> None:
    token = draw(Sampling(temperature=0.0), np.zeros(5, np.float32))
    assert (token.logprob, token.top) == (None, ())


def test_the_logits_are_left_as_they_were() -> None:
    row = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    before = row.copy()
    row.flags.writeable = False
    draw(Sampling(repetition_penalty=2.0, logit_bias={3: 1.0}, logprobs=5, top_p=0.5), row, 2, (1, 2), 1)
    assert (row == before).all()
