from __future__ import annotations

import threading

import pytest

from agent.bench.arrivals import ClosedLoop, Poisson
from agent.bench.load import Answer, Load, run_load, run_traffic
from pipeline.head import Listener
from pipeline.messages import Failed, Finished, Request, Token, TokenEvent, Usage
from shards.errors import StageError


class Echo:
    """Answers each request on a thread of its own: its prompt's first token, then counting up from it."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.cancelled: list[str] = []
        self._fails_at = fails_at
        self._lock = threading.Lock()
        self._open = self.most_open = 0

    def submit(self, request: Request, listener: Listener) -> None:
        with self._lock:
            self.asked.append(request.prompt)
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            number = len(self.asked)
        threading.Thread(target=self._answer, args=(request, listener, number)).start()

    def cancel(self, request: str) -> None:
        self.cancelled.append(request)

    def _answer(self, request: Request, listener: Listener, number: int) -> None:
        usage = Usage(len(request.prompt), 0, 0)
        with self._lock:
            self._open -= 1
        if number == self._fails_at:
            listener(Failed(request.id, StageError("it broke"), usage))
            return
        for i in range(request.max_tokens):
            listener(TokenEvent(request.id, Token(0, len(request.prompt) + i, request.prompt[0] + i)))
        listener(Finished(request.id, "length", usage))


def test_a_closed_loop_asks_the_prompts_in_turn_and_hears_every_token() -> None:
    side = Echo()
    load = run_traffic(side, ClosedLoop(3, 8), [(10,), (20, 21)], 4)
    assert sorted(side.asked) == [(10,)] * 4 + [(20, 21)] * 4
    assert side.most_open <= 3
    assert load.tokens == ((10, 11, 12, 13), (20, 21, 22, 23)) * 4
    assert len(load.first_token_seconds) == 8 and len(load.between_token_seconds) == 24
    assert min(load.first_token_seconds) > 0 and min(load.between_token_seconds) >= 0
    assert load.tokens_per_second == pytest.approx(32 / load.seconds)


def test_independent_users_are_measured_from_when_their_questions_were_due() -> None:
    due = Poisson(200.0, 10, 3).begin().take(1e9)
    load = run_traffic(Echo(), Poisson(200.0, 10, 3), [(5,)], 2)
    assert [answer.asked for answer in load.answers] == due


def test_users_of_run_load_are_dealt_to_the_heads_in_turn() -> None:
    heads = Echo(), Echo()
    load = run_load(heads, [(1,), (2,), (3,)], 2)
    assert [head.asked for head in heads] == [[(1,), (3,)], [(2,)]]
    assert load.tokens == ((1, 2), (2, 3), (3, 4))


def test_a_request_that_fails_ends_the_load_and_the_others() -> None:
    side = Echo(fails_at=2)
    with pytest.raises(StageError, match="it broke"):
        run_traffic(side, ClosedLoop(2, 50), [(1,)], 2)
    assert len(side.cancelled) == len(side.asked) >= 2


TWO_USERS = Load(
    (
        Answer(0.0, [1.0, 2.0, 3.0, 4.0]),  # waits till 1
        Answer(0.0, [2.0, 2.5, 3.0, 3.5]),  # waits till 2
        Answer(4.0, [6.0, 7.0]),  # waits from 4 to 6
    )
)


def test_rates_are_of_all_the_time_and_of_the_time_in_which_nobody_waits() -> None:
    assert TWO_USERS.tokens_per_second == pytest.approx(10 / 7)
    # from 2 to 4 the tokens at 2.5, 3, 3, 3.5 and 4, from 6 to 7 that at 7
    assert TWO_USERS.decode_rate() == pytest.approx(6 / 3)


def test_a_rate_can_be_of_the_time_in_which_all_users_decode() -> None:
    assert TWO_USERS.decode_rate(2) == pytest.approx(4 / 1.5)  # from 2 to 3.5
    assert TWO_USERS.decode_rate(2, least_tokens=5) is None
    assert TWO_USERS.decode_rate(3) is None


def test_users_who_ask_at_once_decode_together_from_the_last_first_token_to_the_first_last_one() -> None:
    load = Load((Answer(0.0, [1.0, 5.0, 6.0]), Answer(0.0, [4.0, 5.5, 8.0])))
    assert load.decode_tokens_per_second == pytest.approx(3 / (6 - 4))


def test_users_who_never_decode_together_are_measured_while_nobody_waits() -> None:
    load = Load((Answer(0.0, [1.0, 2.0]), Answer(0.0, [3.0, 4.0])))
    assert load.decode_tokens_per_second == pytest.approx(1 / (4 - 3))
