from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from time import monotonic, sleep

import numpy as np
import pytest
from fake_stages import BLOCK, GREEDY, KV_TOKENS, VOCABULARY, FakeStage, ThreadChain, answer, fake_chain

from pipeline import wire
from pipeline.doorman import Doorman
from pipeline.head import Head
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling, StepResult, Token, TokenEvent
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from shards.errors import CapacityError, EdgeAgentError, RequestError, StageError
from shards.runtime import Batch

PATIENCE = 60.0


class Listener:
    """Collects the events of a request."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self._queue: SimpleQueue[RequestEvent] = SimpleQueue()

    def __call__(self, event: RequestEvent) -> None:
        self._queue.put(event)

    def next(self) -> RequestEvent:
        event = self._queue.get(timeout=PATIENCE)
        self.events.append(event)
        return event

    def end(self) -> Finished | Failed:
        while not isinstance(event := self.next(), Finished | Failed):
            pass
        return event

    def is_silent(self) -> bool:
        try:
            self.events.append(self._queue.get(timeout=0.2))
        except Empty:
            return True
        return False

    @property
    def tokens(self) -> list[int]:
        return [event.token.token for event in self.events if isinstance(event, TokenEvent)]


class Rig:
    """A head on a chain of fake stages."""

    def __init__(self, stages: int = 2, stall_seconds: float = 30, **config: int) -> None:
        self.chain: ThreadChain = fake_chain(stages)
        values = {"kv_tokens": KV_TOKENS, "block": BLOCK, "context_length": 200, "stages": stages, "token_budget": 64}
        self.scheduler = Scheduler(SchedulerConfig(**{**values, "max_sequences": 16, **config}))
        self.head = Head(self.chain, self.scheduler, stall_seconds=stall_seconds)

    def ask(
        self,
        prompt: Sequence[int],
        count: int = 10,
        sampling: Sampling = GREEDY,
        id: str = "",
        stops: Sequence[int] = (),
    ) -> Listener:
        listener = Listener()
        request = Request(id or f"{id}{object.__repr__(listener)}", tuple(prompt), sampling, count, frozenset(stops))
        self.head.submit(request, listener)
        return listener

    def close(self) -> None:
        self.head.close()
        self.chain.close()


@pytest.fixture(params=[1, 2, 3])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.close()


@pytest.fixture
def two() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def held_after_its_first_step(stage: FakeStage) -> threading.Event:
    """Until the event is set, answers go no further than to their first token, however late the test is."""
    go_on = threading.Event()

    def wait(batch: Batch) -> None:
        if stage.calls:
            go_on.wait(PATIENCE)

    stage.before_step = wait
    return go_on


def wait_until(done: Callable[[], bool]) -> None:
    end = monotonic() + PATIENCE
    while not done():
        assert monotonic() < end
        sleep(0.01)


def test_requests_get_their_answers(rig: Rig) -> None:
    prompts = [[i + 1, *range(i)] for i in range(12)]
    listeners = [rig.ask(prompt, 20) for prompt in prompts]
    for prompt, listener in zip(prompts, listeners, strict=True):
        end = listener.end()
        assert isinstance(end, Finished)
        assert end.reason == "length"
        assert end.usage.completion == 20
        assert listener.tokens == answer(prompt, 20)
    snapshot = rig.head.snapshot()
    assert snapshot.scheduler.completion_tokens == 12 * 20
    assert snapshot.scheduler.running == snapshot.dropped == 0
    assert snapshot.failure is None
    assert len(snapshot.times.stages) == len(snapshot.times.use) == len(rig.chain.stages)
    assert snapshot.times.head > 0
    assert snapshot.times.traversal > max(snapshot.times.wire, 0)  # a stage may have a step before the head notes it
    assert snapshot.received_bytes > 12 * 20
    assert snapshot.requests == snapshot.steps == ()


def test_an_answer_ends_with_what_the_steps_took(two: Rig) -> None:
    end = two.ask([1, 2], 10).end()
    assert isinstance(end, Finished)
    assert end.steps is not None
    assert end.steps.chain == two.chain.limits.epoch
    assert len(end.steps.stages) == 2
    assert len(end.steps.steps) == 10


def test_requests_and_steps_that_are_on_their_way_can_be_looked_at(two: Rig) -> None:
    hold = threading.Event()
    two.chain.stages[1].before_step = lambda batch: hold.wait(PATIENCE) and None
    listeners = [two.ask([1] * length, 5, id=f"r{length}") for length in (3, 30)]
    wait_until(lambda: len(two.head.snapshot().steps) == two.head.snapshot().scheduler.in_flight > 0)
    snapshot = two.head.snapshot()
    assert [request.id for request in snapshot.requests] == ["r3", "r30"]
    assert all(request.age_seconds >= 0 for request in snapshot.requests)
    assert [step.number for step in snapshot.steps] == list(range(len(snapshot.steps)))
    assert all(step.rows >= step.sequences >= 1 and step.age_ms >= 0 for step in snapshot.steps)
    assert sum(step.rows for step in snapshot.steps) == snapshot.scheduler.rows
    hold.set()
    assert all(isinstance(listener.end(), Finished) for listener in listeners)


def test_a_stop_token_ends_an_answer(two: Rig) -> None:
    tokens = answer([7, 9], 10)
    listener = two.ask([7, 9], 10, stops=[tokens[4]])
    end = listener.end()
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    assert listener.tokens == tokens[:4]


def test_a_chain_that_connects_between_two_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    door, answer_at_it, deliver = threading.Event(), Doorman._answer, Head._deliver

    def answer_later(doorman: Doorman, request: list[bytes]) -> list[bytes]:
        assert door.wait(PATIENCE)
        return answer_at_it(doorman, request)

    def deliver_until_connected(head: Head, events: Iterable[RequestEvent]) -> None:
        if head._scheduler.snapshot().waiting:  # the first step could not be sent
            door.set()
            wait_until(lambda: rig.chain.sender.is_ready)
        deliver(head, events)

    monkeypatch.setattr(Doorman, "_answer", answer_later)
    monkeypatch.setattr(Head, "_deliver", deliver_until_connected)
    rig = Rig()
    assert isinstance(rig.ask([1, 2]).end(), Finished)
    assert door.is_set()
    rig.close()


def test_cancelling_frees_every_stage(two: Rig) -> None:
    go_on = held_after_its_first_step(two.chain.stages[1])
    listener = two.ask([1], 190, id="long")
    listener.next()
    two.head.cancel("long")
    end = listener.end()
    go_on.set()
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    wait_until(lambda: all(not stage.cached for stage in two.chain.stages))
    two.head.cancel("long")
    two.head.cancel("never heard of")
    assert two.ask([5], 3).end()
    assert listener.is_silent()


def test_what_the_scheduler_refuses_is_the_only_event(two: Rig) -> None:
    for prompt, kind in [([], RequestError), ([1] * 200, RequestError), ([1] * 257, EdgeAgentError)]:
        listener = two.ask(prompt)
        end = listener.end()
        assert isinstance(end, Failed)
        assert isinstance(end.error, kind)
        assert len(listener.events) == 1


def test_two_requests_of_one_id_do_not_mix(two: Rig) -> None:
    go_on = held_after_its_first_step(two.chain.stages[1])
    first = two.ask([1, 2], 150, id="same")
    second = two.ask([3, 4], 10, id="same")
    end = second.end()
    go_on.set()
    assert isinstance(end, Failed)
    assert isinstance(end.error, RequestError)
    assert second.tokens == []
    assert isinstance(first.end(), Finished)
    assert first.tokens == answer([1, 2], 150)


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        ([VOCABULARY], GREEDY, "prompt"),
        ([-1], GREEDY, "prompt"),
        ([1], Sampling(temperature=-1.0), "temperature"),
        ([1], Sampling(top_k=2**40), "top_k"),
        ([1], Sampling(seed=2**70), "seed"),
        ([1], Sampling(logit_bias={VOCABULARY: 1.0}), "logit_bias"),
    ],
)
def test_impossible_requests_are_refused_at_once(two: Rig, prompt: list[int], sampling: Sampling, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        two.ask(prompt, sampling=sampling)
    assert refused.value.where == field


def test_an_error_in_a_step_ends_its_requests_alone(two: Rig) -> None:
    def refuse(batch: Batch) -> None:
        if 99 in batch.x[:, 0]:
            raise CapacityError("the KV cache is full", where="CPU")

    two.chain.stages[1].before_step = refuse
    other = two.ask([1], 100)
    other.next()
    end = two.ask([99], 5).end()
    assert isinstance(end, Failed)
    assert "stage 2 (layers 2-3): CPU: the KV cache is full" in str(end.error)
    end = other.end()
    # it may have shared the step; then it has the same error, and otherwise its whole answer
    assert isinstance(end, Failed) or other.tokens == answer([1], 100)
    two.chain.stages[1].before_step = lambda batch: None
    again = two.ask([99], 5)
    assert isinstance(again.end(), Finished)
    assert again.tokens == answer([99], 5)


def test_a_dead_stage_ends_every_request_and_refuses_new_ones(two: Rig) -> None:
    hold = threading.Event()
    two.chain.stages[1].before_step = lambda batch: hold.wait(PATIENCE) and None
    listeners = [two.ask([i]) for i in range(1, 5)]
    death = StageError("the process ended (exit code -9: SIGKILL)", where="stage 2 of 2 (layers 2-3)")
    two.chain.fail(death)
    for listener in listeners:
        end = listener.end()
        assert isinstance(end, Failed)
        assert end.error is death
    with pytest.raises(StageError) as refused:
        two.ask([1])
    assert refused.value is death
    assert two.head.snapshot().failure == str(death)
    hold.set()
    assert all(listener.is_silent() for listener in listeners)


def test_a_chain_that_does_not_answer_is_given_up() -> None:
    rig = Rig(stall_seconds=0.3)
    hold = threading.Event()
    rig.chain.stages[0].before_step = lambda batch: hold.wait(PATIENCE) and None
    end = rig.ask([1]).end()
    assert isinstance(end, Failed)
    assert "has not come back for 0.3 s" in str(end.error)
    hold.set()
    rig.close()


def test_a_step_lost_on_its_way_is_an_error_once_a_later_one_is_back(two: Rig) -> None:
    hold = threading.Event()
    two.chain.stages[0].before_step = lambda batch: hold.wait(PATIENCE) and None
    listeners = []
    for step in (1, 2):
        listeners.append(two.ask([step], 30))
        wait_until(lambda step=step: two.head.snapshot().scheduler.in_flight == step)  # type: ignore[misc]
    result = StepResult(two.scheduler.snapshot().steps - 1, ())
    two.chain.forge(wire.encode_result(result, 1))
    ends = [listener.end() for listener in listeners]
    assert any(isinstance(end, Failed) and "was lost on its way" in str(end.error) for end in ends)
    hold.set()


def test_a_listener_that_fails_ends_its_own_request_only(two: Rig) -> None:
    def broken(event: RequestEvent) -> None:
        raise ValueError("broken")

    two.head.submit(Request("broken", (1,), GREEDY, 150), broken)
    other = two.ask([2], 30)
    assert isinstance(other.end(), Finished)
    assert other.tokens == answer([2], 30)
    wait_until(lambda: two.head.snapshot().scheduler.running == 0)
    assert two.head.snapshot().failure is None


def test_a_defect_in_the_head_ends_everything_clearly(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = held_after_its_first_step(two.chain.stages[1])
    listener = two.ask([1], 190)
    listener.next()

    def surprise(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(two.scheduler, "complete", surprise)
    go_on.set()
    end = listener.end()
    assert isinstance(end, Failed)
    assert "surprise" in str(end.error)
    with pytest.raises(StageError, match="surprise"):
        two.ask([1])
    assert two.head.snapshot().failure is not None


def test_closing_ends_what_runs_and_refuses_the_rest() -> None:
    rig = Rig()
    go_on = held_after_its_first_step(rig.chain.stages[1])
    listeners = [rig.ask([i], 190) for i in range(1, 20)]
    listeners[0].next()
    rig.head.close()
    go_on.set()
    for listener in listeners:
        end = listener.end()
        assert isinstance(end, Finished)
        assert end.reason == "cancelled"
    with pytest.raises(StageError, match="closed"):
        rig.ask([1])
    rig.head.cancel("whatever")
    assert rig.head.snapshot().scheduler.running == 0
    rig.head.close()
    rig.chain.close()


def test_every_request_ends_once_whatever_happens_at_the_same_time() -> None:
    rig = Rig(3)
    listeners: list[Listener] = []
    refused = 0
    lock = threading.Lock()

    def client(base: int) -> None:
        nonlocal refused
        for i in range(12):
            try:
                listener = rig.ask([base, i], 12, id=f"{base}.{i}")
            except StageError:
                with lock:
                    refused += 1
                continue
            with lock:
                listeners.append(listener)
            if i % 3 == 0:
                rig.head.cancel(f"{base}.{i}")

    threads = [threading.Thread(target=client, args=(base,)) for base in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(listeners) > 10)
    rig.head.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(listeners) + refused == 48
    for listener in listeners:
        listener.end()
        assert sum(isinstance(event, Finished | Failed) for event in listener.events) == 1
    rig.chain.close()


def test_frames_that_are_no_results_are_dropped_and_counted(two: Rig) -> None:
    two.chain.forge([b"nonsense"])
    two.chain.forge(wire.encode_result(StepResult(12345, (Token(0, 0, 0),)), 1))
    two.chain.forge(wire.encode_result(StepResult(0, ()), 2))
    wait_until(lambda: two.head.snapshot().dropped == 3)
    listener = two.ask([1, 2])
    assert isinstance(listener.end(), Finished)
    assert listener.tokens == answer([1, 2], 10)
    assert np.isfinite(two.head.snapshot().times.wire)
