"""Steps that follow another before the head has seen its tokens: what the scheduler sends, and who fills it in."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zmq
from simulated_chain import Driven, TimedChain, reference, request, scheduler
from small_limits import LIMITS

from pipeline import wire
from pipeline.link import KeyPair, Peer, Receiver, Sender
from pipeline.messages import NOT_YET, Finished, Free, StepResult, Token
from pipeline.run_ahead import LatestTokens
from pipeline.spin_wait import SpinWait
from pipeline.wire import Frame
from shards.runtime import SequenceRows


def frame(number: int, *rows: SequenceRows, tokens: tuple[int, ...], free: tuple[int, ...] = ()) -> Frame:
    return Frame(number, tuple(map(Free, free)), rows, np.array(tokens, np.int32), echo=True)


def test_the_next_row_is_sent_before_its_token_is_known() -> None:
    driven = Driven(request(max_tokens=8), runs_ahead=True)
    assert driven.send().tokens.tolist() == [1, 2, 3]
    ahead = driven.send()
    assert ahead.tokens.tolist() == [NOT_YET]
    assert [(row.past, row.count, row.sample) for row in ahead.rows] == [(3, 1, 1)]
    assert driven.scheduler.next_step(0.0) is None  # one step ahead, no more
    driven.deliver()
    assert driven.send().tokens.tolist() == [NOT_YET]
    driven.finish()
    assert driven.answers.of("a") == reference(request(max_tokens=8), 1)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_row_is_sent_for_the_last_token(most: int) -> None:
    driven = Driven(request(max_tokens=most), runs_ahead=True)
    driven.finish()
    assert sum(len(step.rows) for step in driven.chain.log) == most


def test_a_stop_token_wastes_one_row_at_most() -> None:
    wanted = request(max_tokens=50)
    stop = reference(wanted, 1)[5]
    wanted = request(max_tokens=50, stop_tokens=frozenset([stop]))
    answer = reference(wanted, 1)
    driven = Driven(wanted, runs_ahead=True)
    driven.finish()
    assert driven.answers.of("a") == answer[:-1]
    end = driven.answers.ended["a"]
    assert isinstance(end, Finished) and end.reason == "stop"
    assert sum(len(step.rows) for step in driven.chain.log) <= len(answer) + 1


@pytest.mark.parametrize(("stages", "users"), [(1, 1), (1, 5), (2, 1), (3, 2)])
def test_the_way_to_the_head_costs_nothing(stages: int, users: int) -> None:
    """With it a link of 40 % of a step is hidden; without it one stage would be idle for it."""
    timed = TimedChain(scheduler(stages=stages, runs_ahead=True, kv_tokens=4096), lambda rows: 1.0, link_ms=0.4)
    wanted = [request(str(i), range(1, 4 + i), max_tokens=60) for i in range(users)]
    for each in wanted:
        timed.arrive(0.0, each)
    timed.run()
    for each in wanted:
        assert timed.answers.of(each.id) == reference(each, stages)
    assert timed.busy(10.0, 40.0) > min(users, stages) / stages - 0.05


def test_tokens_of_the_stage_itself_are_filled_in() -> None:
    latest = LatestTokens(None, LIMITS, SpinWait(False))
    latest.fill(frame(0, SequenceRows(7, 0, 2, 1), SequenceRows(8, 0, 1, 1), tokens=(5, 6, 9)))
    latest.hear(StepResult(0, (Token(7, 2, 41), Token(8, 1, 42))))
    filled = latest.fill(frame(1, SequenceRows(8, 1, 1, 1), SequenceRows(7, 2, 1, 1), tokens=(NOT_YET, NOT_YET)))
    assert filled.x.tolist() == [42, 41]


def test_a_token_that_was_never_sampled_is_no_reason_to_wait() -> None:
    latest = LatestTokens(None, LIMITS, SpinWait(False))
    latest.fill(frame(0, SequenceRows(7, 0, 1, 1), tokens=(5,)))
    latest.hear(StepResult(0, (), error="out of order"))
    assert latest.fill(frame(1, SequenceRows(7, 1, 1, 1), tokens=(NOT_YET,))).x.tolist() == [0]
    latest.hear(StepResult(1, (Token(7, 2, 41),)))
    assert latest.fill(frame(2, SequenceRows(7, 2, 1, 1), tokens=(NOT_YET,), free=(7,))).x.tolist() == [41]
    assert latest.fill(frame(3, SequenceRows(7, 2, 1, 1), tokens=(NOT_YET,))).x.tolist() == [0]


def test_nothing_is_kept_of_sequences_whose_last_token_comes_after_they_were_freed() -> None:
    """An answer that ended, or was cancelled, has had a row sent ahead."""
    latest = LatestTokens(None, LIMITS, SpinWait(False))

    def live(sequence: int) -> None:
        latest.fill(frame(2 * sequence, SequenceRows(sequence, 0, 1, 1), tokens=(5,)))
        latest.fill(frame(2 * sequence + 1, tokens=(), free=(sequence,)))
        latest.hear(StepResult(2 * sequence, (Token(sequence, 1, 41),)))

    tracemalloc.start()
    try:
        for sequence in range(3000):  # Python keeps up to 2000 small tuples to use them again
            live(sequence)
        before, _ = tracemalloc.get_traced_memory()
        for sequence in range(3000, 6000):
            live(sequence)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


def test_the_first_of_several_stages_waits_for_the_tails_echo() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outside: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    first, tail = KeyPair.new(), KeyPair.new()
    echo = Receiver(context, first, tail.public, LIMITS.part_bytes, "127.0.0.1")
    sender = Sender(outside, tail, Peer(host="127.0.0.1", port=echo.port, public=first.public))
    latest = LatestTokens(echo, LIMITS, SpinWait(True))
    try:
        latest.fill(frame(0, SequenceRows(7, 0, 1, 1), tokens=(5,)))
        latest.fill(frame(1, SequenceRows(8, 0, 1, 1), tokens=(5,)))
        for result in (StepResult(0, (Token(7, 1, 41),)), StepResult(1, (Token(8, 1, 42),))):
            sender.send(wire.encode_result(result, LIMITS.epoch))
        assert latest.fill(frame(2, SequenceRows(7, 1, 1, 1), tokens=(NOT_YET,))).x.tolist() == [41]
        assert latest.fill(frame(3, SequenceRows(8, 1, 1, 1), tokens=(NOT_YET,))).x.tolist() == [42]
    finally:
        latest.close()
        sender.close()
        context.term()
        outside.term()
