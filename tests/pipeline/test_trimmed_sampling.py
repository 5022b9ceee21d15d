"""A head that knows some tokens only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from single_rows import Logits, decode

from pipeline.messages import Open, Sampling
from pipeline.sampler import Sampler
from shards.errors import StageError


@st.composite
def trimmed_draws(draw_: st.DrawFn) -> tuple[Sampling, Logits, NDArray[np.int32], list[int], int]:
    size = draw_(st.integers(2, 300))
    ids = np.array(sorted(draw_(st.sets(st.integers(0, size - 1), min_size=1))), np.int32)
    tokens = st.integers(0, size - 1)
    history = draw_(st.lists(tokens, max_size=20))
    sampling = Sampling(
        temperature=draw_(st.sampled_from([0.0, 0.7, 1.2])),
        top_k=draw_(st.sampled_from([0, 3])),
        top_p=draw_(st.sampled_from([1.0, 0.9])),
        repetition_penalty=draw_(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw_(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw_(st.sampled_from([0.0, 0.2])),
        logit_bias=draw_(st.dictionaries(tokens, st.sampled_from([-5.0, 2.0]), max_size=4)),
        logprobs=draw_(st.sampled_from([None, 3])),
        seed=draw_(st.integers(0, 2**32)),
    )
    row = np.random.default_rng(draw_(st.integers(0, 2**32))).normal(0, 3, size).astype(np.float32)
    return sampling, row, ids, history, draw_(st.integers(0, len(history)))


@given(trimmed_draws())
def test_a_trimmed_head_draws_as_a_whole_one_that_makes_the_others_impossible(
    case: tuple[Sampling, Logits, NDArray[np.int32], list[int], int],
) -> None:
    """Noise, penalties, bias and log probabilities go by the token, not by its column."""
    sampling, row, ids, history, prompt = case
    whole = np.full(len(row), -1e30, np.float32)
    whole[ids] = row[ids]
    found = []
    for sampler, logits in ((Sampler(len(row)), whole), (Sampler(len(row), ids), row[ids])):
        sampler.open(Open(1, sampling, tuple(history), prompt))
        found.append(decode(sampler, 1, len(history), logits))
    (wanted, got), top = found, len(ids)
    assert (got.token, got.position) == (wanted.token, wanted.position)
    assert got.logprob == wanted.logprob or got.logprob == pytest.approx(wanted.logprob, abs=1e-5)
    assert [token for token, _ in got.top] == [token for token, _ in wanted.top][:top]


def test_a_trimmed_head_wants_logits_of_its_width() -> None:
    sampler = Sampler(100, np.array([3, 50], np.int32))
    sampler.open(Open(1, Sampling(temperature=0.0)))
    with pytest.raises(StageError, match="over 2 tokens"):
        decode(sampler, 1, 5, np.zeros(100, np.float32))
    assert decode(sampler, 1, 5, np.array([0, 1], np.float32)).token == 50
