from __future__ import annotations

from simulated_chain import request

from pipeline.messages import Open, Sampling, Usage
from pipeline.sequence import Sequence


def test_prompt_answer_and_replay_are_the_same_thing() -> None:
    sequence = Sequence(request(prompt=[1, 2, 3]))
    assert (sequence.unsent, sequence.completion) == (3, 0)
    sequence.sent = 3
    assert sequence.unsent == 0
    sequence.tokens.append(9)
    assert (sequence.unsent, sequence.completion) == (1, 1)
    sequence.sent = 0
    assert sequence.unsent == 4
    assert sequence.usage == Usage(prompt=3, cached=0, completion=1)


def test_the_prompt_of_the_request_is_never_changed() -> None:
    wanted = request(prompt=[1])
    Sequence(wanted).tokens.append(2)
    assert wanted.prompt == (1,)


def test_opening_has_a_history_where_sampling_needs_one() -> None:
    for sampling, history, prompt in ((Sampling(), (), 0), (Sampling(frequency_penalty=0.5), (1, 2, 9), 2)):
        sequence = Sequence(request(prompt=[1, 2]), id=5)
        object.__setattr__(sequence.request, "sampling", sampling)
        sequence.tokens.append(9)
        assert sequence.opening == Open(5, sampling, history, prompt)


def test_two_requests_of_equal_words_are_two() -> None:
    assert len({Sequence(request()), Sequence(request())}) == 2
