"""Rows of guesses: on the wire, at the tail's sampler, and at stages that know of void ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_stages import GREEDY, VOCABULARY, ThreadChain, answer, fake_chain
from hypothesis import given
from hypothesis import strategies as st
from small_limits import LIMITS

from pipeline import wire
from pipeline.cancelled import CancelledBranches
from pipeline.messages import Fork, Open, Sampling, SequenceRows, StepResult, Token, Verify
from pipeline.sampler import Sampler
from pipeline.wire import Frame
from shards.errors import StageError, WireError

# On the wire


def frame(*verifies: Verify) -> Frame:
    rows = (SequenceRows(1, 10, 3, 3), SequenceRows(2, 5, 2, 1), SequenceRows(3, 0, 4, 0))
    return Frame(5, (), rows, np.arange(9, dtype=np.int32), verifies=verifies)


def decoded(sent: Frame) -> Frame:
    limits = LIMITS.model_copy(update={"payload": "tokens"})
    return wire.decode([bytes(part) for part in wire.encode(sent, limits.epoch, "tokens")], limits)


def test_verifies_come_back_as_they_were() -> None:
    sent = frame(Verify(1, 7, (4, 5, 6)), Verify(2, 0, (99,)))
    assert decoded(sent).verifies == sent.verifies


@pytest.mark.parametrize(
    ("verify", "field", "what"),
    [
        (Verify(4, 0, (1,)), "tokens", "0 sampled rows"),
        (Verify(3, 0, (1,)), "tokens", "0 sampled rows"),
        (Verify(1, 0, (1, 2)), "tokens", "3 sampled rows"),
        (Verify(1, 0, (1, 2, 3, 4)), "tokens", "3 sampled rows"),
        (Verify(1, 0, (1, 2, 100)), "tokens", "0..99"),
        (Verify(1, 0, (1, -1, 2)), "tokens", "0..99"),
        (Verify(1, -1, (1, 2, 3)), "branch", "0.."),
    ],
)
def test_verifies_that_do_not_fit_the_rows_are_refused(verify: Verify, field: str, what: str) -> None:
    with pytest.raises(WireError, match=what) as caught:
        decoded(frame(verify))
    assert caught.value.where is not None and f"verifies[0].{field}" in caught.value.where


def test_a_sequence_is_verified_once() -> None:
    with pytest.raises(WireError, match="once"):
        decoded(frame(Verify(2, 0, (1,)), Verify(2, 1, (1,))))


@given(st.sets(st.sampled_from([1, 2, 3])))
def test_a_frame_without_some_sequences_keeps_all_of_the_others(sequences: set[int]) -> None:
    whole = frame(Verify(1, 7, (0, 1, 2)), Verify(2, 0, (4,)))
    values = {1: [0, 1, 2], 2: [3, 4], 3: [5, 6, 7, 8]}
    left = wire.without(whole, sequences)
    assert [r.sequence for r in left.rows] == [s for s in values if s not in sequences]
    assert left.x.tolist() == [x for s in values if s not in sequences for x in values[s]]
    assert [v.sequence for v in left.verifies] == [s for s in (1, 2) if s not in sequences]
    assert decoded(left).x.tolist() == left.x.tolist()


# At the sampler


@st.composite
def texts(draw: st.DrawFn) -> tuple[Sampling, int, list[int], list[bool]]:
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.2])),
        top_k=draw(st.sampled_from([0, 4])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3])),
        logprobs=draw(st.sampled_from([None, 2])),
        seed=draw(st.integers(0, 2**32)),
    )
    widths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    return sampling, draw(st.integers(0, 2**32)), widths, draw(st.lists(st.booleans(), min_size=48, max_size=48))


def logits_after(tokens: list[int], seed: int) -> Any:
    """A model: what it says depends on every token before."""
    return np.random.default_rng([seed, *tokens]).normal(0, 2, 20).astype(np.float32)


@given(texts())
def test_a_text_is_the_same_with_guesses_and_without(case: tuple[Sampling, int, list[int], list[bool]]) -> None:
    """Greedy and sampled, with penalties and log probabilities, whatever was guessed."""
    sampling, seed, widths, lucky = case
    prompt = [3, 1]

    def opened() -> Sampler:
        sampler = Sampler(20)
        sampler.open(Open(1, sampling, tuple(prompt), len(prompt)))
        return sampler

    plain, text, expected = opened(), list(prompt), list[Token]()
    while len(text) < 2 + 48 + 8:
        expected += plain.sample([SequenceRows(1, len(text) - 1, 1, 1)], logits_after(text, seed)[None])
        text.append(expected[-1].token)
    sampler, got = opened(), list[Token]()
    got += sampler.sample([SequenceRows(1, 0, 2, 1)], logits_after(prompt, seed)[None])
    luck = iter(lucky)
    for width in widths:
        have = [*prompt, *(token.token for token in got)]
        right = text[len(have) : len(have) + width]
        guesses = [token if next(luck) else (token + 1) % 20 for token in right]
        verify = Verify(1, 0, (have[-1], *guesses))
        assert sampler.expects(verify, len(have) - 1)
        rows = SequenceRows(1, len(have) - 1, 1 + width, 1 + width)
        logits = np.stack([logits_after([*have, *guesses[:i]], seed) for i in range(1 + width)])
        tokens = sampler.sample([rows], logits, [verify])
        agreed = next((i for i in range(width) if guesses[i] != right[i]), width)
        assert len(tokens) == agreed + 1
        got += tokens
    assert got == expected[: len(got)]


def test_only_what_goes_on_from_the_last_token_is_expected() -> None:
    sampler = Sampler(4)
    assert not sampler.expects(Verify(1, 0, (2,)), 5)
    sampler.open(Open(1, Sampling(temperature=0.0)))
    assert not sampler.expects(Verify(1, 0, (2,)), 5)
    sampler.sample([SequenceRows(1, 0, 5, 1)], np.array([[0, 0, 1, 0]], np.float32))
    assert sampler.expects(Verify(1, 0, (2,)), 5)
    assert not sampler.expects(Verify(1, 0, (3,)), 5)  # another token
    assert not sampler.expects(Verify(1, 0, (2,)), 6)  # behind one that was not right
    sampler.free(1)
    assert not sampler.expects(Verify(1, 0, (2,)), 5)


def test_a_fork_begins_without_a_last_token() -> None:
    sampler = Sampler(4)
    sampler.open(Open(1, Sampling(temperature=0.0)))
    sampler.sample([SequenceRows(1, 0, 5, 1)], np.array([[0, 0, 1, 0]], np.float32))
    sampler.fork(Fork(1, 2, 4))
    assert not sampler.expects(Verify(2, 0, (2,)), 5)


# At the stages


def send(chain: ThreadChain, number: int, past: int, tokens: list[int], branch: int = -1, sample: int = -1) -> None:
    """Rows of sequence 1, which begins with the first of them; guesses if they have a branch."""
    sample = len(tokens) if sample < 0 else sample
    verifies = (Verify(1, branch, tuple(tokens[-sample:])),) if branch >= 0 else ()
    sent = Frame(
        number,
        (Open(1, GREEDY),) if not past else (),
        (SequenceRows(1, past, len(tokens), sample),),
        np.array(tokens, np.int32),
        verifies=verifies,
    )
    chain.sender.send(wire.encode(sent, chain.limits.epoch, "tokens"))


def receive(chain: ThreadChain) -> StepResult:
    result = wire.decode_result(chain.receiver.receive(), chain.limits)
    assert result.error is None
    return result


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_tail_takes_guesses_as_long_as_they_are_right(stages: int) -> None:
    chain = fake_chain(stages)
    first, second, third, fourth = answer([3, 4], 4)
    send(chain, 0, 0, [3, 4], sample=1)
    assert [token.token for token in receive(chain).tokens] == [first]
    send(chain, 1, 2, [first, second, third + 1, 5], branch=0)
    assert [(token.position, token.token) for token in receive(chain).tokens] == [(3, second), (4, third)]
    send(chain, 2, 4, [third, fourth], branch=1)
    assert len(receive(chain).tokens) == 2
    chain.close()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rows_behind_a_wrong_guess_are_not_computed_by_the_tail(stages: int) -> None:
    chain = fake_chain(stages)
    first, second = answer([3, 4], 2)
    send(chain, 0, 0, [3, 4], sample=1)
    send(chain, 1, 2, [first, second + 1], branch=0)
    send(chain, 2, 4, [7, 8], branch=0)
    send(chain, 3, 3, [second], branch=1)
    assert [len(receive(chain).tokens) for _ in range(4)] == [1, 1, 0, 1]
    computed = [[rows.count for rows in batch.sequences] for batch in chain.stages[-1].calls]
    assert computed == [[2], [2], [1]]
    chain.close()


def test_cancelled_rows_are_computed_by_no_stage() -> None:
    chain = fake_chain(3)
    first, second = answer([3, 4], 2)
    send(chain, 0, 0, [3, 4], sample=1)
    receive(chain)
    for cancelled in chain.cancelled:
        cancelled.add({1: 4})
    send(chain, 1, 2, [first, second], branch=4)
    send(chain, 2, 2, [first, second], branch=5)
    assert [len(receive(chain).tokens) for _ in range(2)] == [0, 2]
    assert [len(stage.calls) for stage in chain.stages] == [2, 2, 2]
    chain.close()


def test_of_many_cancelled_sequences_the_latest_are_known() -> None:
    cancelled = CancelledBranches()
    for sequence in range(5000):
        cancelled.add({sequence: 3})
    cancelled.add({4999: 1})  # an older word of it
    assert cancelled.covers(Verify(4999, 3, (1,))) and not cancelled.covers(Verify(4999, 4, (1,)))
    assert not cancelled.covers(Verify(0, 3, (1,)))
    cancelled.forget(4999)
    assert not cancelled.covers(Verify(4999, 0, (1,)))


def test_logits_that_are_not_finite_are_an_error_within_guesses_too() -> None:
    sampler = Sampler(VOCABULARY)
    sampler.open(Open(1, GREEDY))
    logits = np.zeros((2, VOCABULARY), np.float32)
    logits[0, 5], logits[1, 0] = 1, np.nan
    with pytest.raises(StageError, match="not finite"):
        sampler.sample([SequenceRows(1, 0, 3, 2)], logits, [Verify(1, 0, (3, 5))])
