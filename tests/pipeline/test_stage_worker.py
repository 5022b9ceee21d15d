from __future__ import annotations

import threading
from collections.abc import Iterator

import msgpack
import numpy as np
import pytest
from fake_stages import GREEDY, VOCABULARY, ThreadChain, answer, fake_chain

from pipeline import wire
from pipeline.messages import Fork, Free, Open, Operation, SequenceRows, StepResult
from pipeline.payload import PayloadKind
from pipeline.wire import Frame
from shards.errors import CapacityError, StageError
from shards.runtime import Batch


@pytest.fixture(params=[1, 2, 3])
def chain(request: pytest.FixtureRequest) -> Iterator[ThreadChain]:
    chain = fake_chain(request.param)
    yield chain
    chain.close()


@pytest.fixture
def two() -> Iterator[ThreadChain]:
    chain = fake_chain(2)
    yield chain
    chain.close()


def send(chain: ThreadChain, number: int, rows: list[tuple[int, int, list[int], int]], *operations: Operation) -> None:
    """A step; rows are (sequence, past, tokens, sample)."""
    frame = Frame(
        number,
        operations,
        tuple(SequenceRows(sequence, past, len(tokens), sample) for sequence, past, tokens, sample in rows),
        np.array([token for _, _, tokens, _ in rows for token in tokens], np.int32),
    )
    chain.sender.send(wire.encode(frame, chain.limits.epoch, "tokens"))


def receive(chain: ThreadChain) -> StepResult:
    return wire.decode_result(chain.receiver.receive(), chain.limits)


def picked(result: StepResult) -> dict[int, int]:
    assert result.error is None
    return {token.sequence: token.token for token in result.tokens}


def test_steps_give_tokens_with_the_timings_of_every_stage(chain: ThreadChain) -> None:
    send(chain, 7, [(1, 0, [3, 4], 1), (2, 0, [5], 1)], Open(1, GREEDY), Open(2, GREEDY))
    result = receive(chain)
    assert result.number == 7
    assert [(t.sequence, t.position, t.token) for t in result.tokens] == [(1, 2, 7), (2, 1, 5)]
    assert len(result.timings) == len(chain.stages)
    for timing in result.timings:
        assert min(timing.wait, timing.queued, timing.compute, timing.send) >= 0
        assert timing.rows == 3
    send(chain, 8, [(2, 1, [5], 1), (1, 2, [7], 1)])
    assert picked(receive(chain)) == {2: 10, 1: 14}


def test_engines_prepare_for_the_rows_of_each_step(two: ThreadChain) -> None:
    seen = []
    for stage in two.stages:
        stage.before_step = lambda batch, stage=stage: seen.append(stage.prepared is batch.sequences)  # type: ignore[misc]
    send(two, 0, [(1, 0, [3, 4], 1)], Open(1, GREEDY))
    send(two, 1, [(1, 2, [7], 1)])
    assert [picked(receive(two)), picked(receive(two))] == [{1: 7}, {1: 14}]
    assert seen == [True] * 4


@pytest.mark.parametrize("hidden", ["f32", "f16"])
def test_both_kinds_of_hidden_state_carry(hidden: PayloadKind) -> None:
    chain = fake_chain(3, hidden)
    send(chain, 0, [(1, 0, [3, 4], 1)], Open(1, GREEDY))
    assert picked(receive(chain)) == {1: 7}
    chain.close()


def test_many_steps_in_flight_keep_their_order(chain: ThreadChain) -> None:
    send(chain, 0, [(s, 0, [s], 0) for s in range(4)], *(Open(s, GREEDY) for s in range(4)))
    tokens = {s: [s] for s in range(4)}
    for number in range(1, 13):  # more than sockets and queues hold
        s = number % 4
        send(chain, number, [(s, len(tokens[s]), [number], 1)])
        tokens[s].append(number)
    assert receive(chain).tokens == ()
    for number in range(1, 13):
        assert receive(chain).number == number
    for stage in chain.stages:
        assert stage.cached == tokens


def test_operations_apply_in_order_on_every_stage(chain: ThreadChain) -> None:
    send(chain, 0, [(1, 0, list(range(9)), 1)], Open(1, GREEDY))
    receive(chain)
    send(chain, 1, [(2, 8, [8], 1)], Fork(1, 2, 8), Open(2, GREEDY), Free(1))
    assert picked(receive(chain)) == {2: 36}
    for stage in chain.stages:
        assert stage.cached == {2: list(range(9))}
    send(chain, 2, [], Free(2))  # operations alone
    assert receive(chain) == StepResult(2, (), timings=chain_timings(chain))
    for stage in chain.stages:
        assert stage.cached == {}


class AnyTimings(tuple):  # type: ignore[type-arg]
    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and len(other) == len(self)

    __hash__ = None  # type: ignore[assignment]


def chain_timings(chain: ThreadChain) -> AnyTimings:
    return AnyTimings(range(len(chain.stages)))


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("kind", [StageError, CapacityError])
def test_a_refused_step_comes_back_as_one_error_and_others_go_on(at: int, kind: type[Exception]) -> None:
    chain = fake_chain(3)
    send(chain, 0, [(1, 0, [1], 1), (2, 0, [2], 1)], Open(1, GREEDY), Open(2, GREEDY))
    receive(chain)

    def refuse(batch: Batch) -> None:
        if batch.sequences[0].sequence == 1:
            raise kind("the device is tired", where="CPU", hint="Let it rest.")  # type: ignore[call-arg]

    chain.stages[at].before_step = refuse
    send(chain, 1, [(1, 1, [1], 1)], Open(3, GREEDY))
    send(chain, 2, [(2, 1, [2], 1)])
    failed = receive(chain)
    assert failed.number == 1
    assert failed.tokens == ()
    names = ["stage 1 (layers 0-1)", "stage 2 (layers 2-3)", "stage 3 (layers 4-5)"]
    assert failed.error == f"{names[at]}: CPU: the device is tired. Let it rest."
    assert len(failed.timings) == 3
    assert [1 in [r.sequence for b in stage.calls[1:] for r in b.sequences] for stage in chain.stages] == [
        index < at for index in range(3)
    ]
    assert picked(receive(chain)) == {2: 4}
    send(chain, 3, [(3, 0, [9], 1)])  # the operations of the failed step hold
    assert picked(receive(chain)) == {3: 9}
    chain.close()


def test_a_failing_operation_fails_its_step_and_no_other(two: ThreadChain) -> None:
    send(two, 0, [(2, 4, [1], 1)], Fork(1, 2, 4), Open(3, GREEDY))
    failed = receive(two)
    assert failed.error == "stage 1 (layers 0-1): sequence 1: it is unknown"
    send(two, 1, [(3, 0, [9], 1)])
    assert picked(receive(two)) == {3: 9}


def test_a_sequence_that_was_never_opened_is_an_error(two: ThreadChain) -> None:
    send(two, 0, [(1, 0, [1], 1)])
    error = receive(two).error
    assert error is not None
    assert error.startswith("stage 2 (layers 2-3): sequence 1: ")


def test_bad_frames_are_dropped_and_reported_sparingly(two: ThreadChain) -> None:
    good = Frame(0, (), (), np.empty(0, np.int32))
    two.sender.send([b"nonsense"])
    for _ in range(50):
        two.sender.send(wire.encode(good, 9, "tokens"))  # another epoch
    (header,) = wire.encode(good, 1, "tokens")
    two.sender.send([msgpack.packb([wire.PROTOCOL + 1, *msgpack.unpackb(header)[1:]])])  # another version
    send(two, 1, [(1, 0, [1], 1)], Open(1, GREEDY))
    assert picked(receive(two)) == {1: 1}
    assert two.warnings[0].startswith("dropped 1 frame so far; the last: frame.header: wanted msgpack, got ")
    assert len(two.warnings) < 10


def test_the_next_frame_is_read_while_the_engine_works(two: ThreadChain) -> None:
    working, go_on = threading.Event(), threading.Event()

    def wait(batch: Batch) -> None:
        working.set()
        assert go_on.wait(60)

    two.stages[1].before_step = wait
    for number in range(3):
        send(two, number, [(number, 0, [1], 1)], Open(number, GREEDY))
    assert working.wait(60)
    while len(two.stages[0].calls) < 3:  # stage 1 has computed them all while stage 2 has answered none
        threading.Event().wait(0.01)
    assert two.receiver.receive_nowait() is None
    go_on.set()
    assert [receive(two).number for _ in range(3)] == [0, 1, 2]


def test_an_unexpected_error_ends_the_worker_with_it(two: ThreadChain) -> None:
    def surprise(batch: Batch) -> None:
        raise ZeroDivisionError("surprise")

    two.stages[1].before_step = surprise
    send(two, 0, [(1, 0, [1], 1)], Open(1, GREEDY))
    while not two.failures:
        threading.Event().wait(0.01)
    assert isinstance(two.failures[0], ZeroDivisionError)


def test_a_long_answer_over_three_stages() -> None:
    chain = fake_chain(3)
    tokens = [3, 1, 4]
    send(chain, 0, [(1, 0, tokens, 1)], Open(1, GREEDY))
    for number in range(1, 51):
        tokens.append(picked(receive(chain))[1])
        send(chain, number, [(1, len(tokens) - 1, tokens[-1:], 1)])
    receive(chain)
    assert tokens == [3, 1, 4, *answer([3, 1, 4], 50)]
    assert max(tokens) < VOCABULARY
    chain.close()
