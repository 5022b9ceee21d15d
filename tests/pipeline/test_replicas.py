from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling, Usage
from pipeline.replicas import Replicas
from shards.errors import OverloadedError, StageError

USAGE = Usage(1, 0, 0)


class Copy:
    """Keeps what it is given until it is told to end it."""

    def __init__(self, refuses: bool = False) -> None:
        self.open: dict[str, Callable[[RequestEvent], None]] = {}
        self.refuses = refuses

    def submit(self, request: Request, listener: Callable[[RequestEvent], None]) -> None:
        if self.refuses:
            raise StageError("the chain has failed")
        self.open[request.id] = listener

    def cancel(self, request: str) -> None:
        self.open.pop(request)(Finished(request, "cancelled", USAGE))

    def end(self, request: str) -> None:
        self.open.pop(request)(Finished(request, "stop", USAGE))


def request(name: str, prompt: tuple[int, ...] = (1,)) -> Request:
    return Request(name, prompt, Sampling(), 8)


@pytest.fixture
def heard() -> list[RequestEvent]:
    return []


def test_requests_go_where_there_is_most_room_for_them(heard: list[RequestEvent]) -> None:
    strong, weak, both = Copy(), Copy(), Replicas()
    both.replace([(strong, 30.0), (weak, 10.0)])
    for number in range(8):
        both.submit(request(str(number)), heard.append)
    assert (len(strong.open), len(weak.open)) == (6, 2)
    for name in list(strong.open):
        strong.end(name)
    for number in range(8, 11):
        both.submit(request(str(number)), heard.append)
    assert len(strong.open) == 3
    assert [event.request for event in heard] == [str(n) for n in (0, 1, 2, 4, 5, 6)]


def test_it_is_told_whether_anything_is_at_work(heard: list[RequestEvent]) -> None:
    told: list[bool] = []
    copy, replicas = Copy(), Replicas(told.append)
    replicas.submit(request("a"), heard.append)
    assert told == []
    replicas.replace([(copy, 1.0)])
    replicas.submit(request("b"), heard.append)
    copy.end("a")
    assert told == [True]
    copy.end("b")
    replicas.submit(request("c"), heard.append)
    assert told == [True, False, True]


def test_requests_wait_while_there_is_no_copy_and_can_be_cancelled(heard: list[RequestEvent]) -> None:
    copy, replicas = Copy(), Replicas()
    for name in "abc":
        replicas.submit(request(name), heard.append)
    assert replicas.parked == 3
    replicas.cancel("b")
    assert heard == [Finished("b", "cancelled", USAGE)]
    replicas.replace([(copy, 1.0)])
    assert list(copy.open) == ["a", "c"]
    assert replicas.parked == 0
    replicas.cancel("a")
    assert heard[-1] == Finished("a", "cancelled", USAGE)


def test_a_copy_that_refuses_ends_those_that_waited(heard: list[RequestEvent]) -> None:
    replicas = Replicas()
    replicas.submit(request("a"), heard.append)
    replicas.replace([(Copy(refuses=True), 1.0)])
    assert isinstance(heard[0], Failed) and "the chain has failed" in str(heard[0].error)
    with pytest.raises(StageError, match="the chain has failed"):
        replicas.submit(request("b"), heard.append)
    assert replicas.drain(Copy(), 0)  # nothing of either is left


def test_a_copy_that_has_failed_gets_nothing_while_there_are_others(heard: list[RequestEvent]) -> None:
    told: list[bool] = []
    failed, other, replicas = Copy(refuses=True), Copy(), Replicas(told.append)
    replicas.replace([(failed, 30.0), (other, 1.0)])
    for name in "ab":
        replicas.submit(request(name), heard.append)
    assert list(other.open) == ["a", "b"]
    assert replicas.drain(failed, 0)
    assert told[-1]


def test_without_hope_requests_are_refused_until_there_is_a_copy_again(heard: list[RequestEvent]) -> None:
    replicas, copy = Replicas(), Copy()
    replicas.submit(request("a"), heard.append)
    replicas.give_up(StageError("the nodes have not the memory"))
    assert isinstance(heard[0], Failed)
    with pytest.raises(StageError, match="not the memory"):
        replicas.submit(request("b"), heard.append)
    replicas.replace([(copy, 1.0)])
    replicas.submit(request("c"), heard.append)
    assert list(copy.open) == ["c"]


def test_what_runs_on_a_copy_that_is_replaced_goes_on(heard: list[RequestEvent]) -> None:
    old, new, replicas = Copy(), Copy(), Replicas()
    replicas.replace([(old, 1.0)])
    replicas.submit(request("a"), heard.append)
    replicas.replace([(new, 1.0)])
    replicas.submit(request("b"), heard.append)
    assert (list(old.open), list(new.open)) == (["a"], ["b"])
    assert not replicas.drain(old, 0)
    old.end("a")
    assert replicas.drain(old, 0)


LONG = tuple(range(600))
"""A system prompt."""


def test_a_prompt_goes_where_its_beginning_is_unless_that_is_clearly_busier(heard: list[RequestEvent]) -> None:
    one, other, both = Copy(), Copy(), Replicas()
    both.replace([(one, 10.0), (other, 10.0)])
    both.submit(request("first", (*LONG, 1)), heard.append)
    assert list(one.open) == ["first"]
    both.submit(request("same", (*LONG, 2)), heard.append)
    both.submit(request("another"), heard.append)
    assert (list(one.open), list(other.open)) == (["first", "same"], ["another"])
    for name in ("third", "fourth"):
        both.submit(request(name, (*LONG, 3)), heard.append)
    assert (len(one.open), len(other.open)) == (4, 1)
    both.submit(request("too much", (*LONG, 4)), heard.append)
    assert list(other.open) == ["another", "too much"]
    for name in list(one.open):
        one.end(name)
    both.submit(request("goes on there", (*LONG, 5)), heard.append)  # where it was last
    assert list(other.open) == ["another", "too much", "goes on there"]


def test_a_much_weaker_copy_gets_no_more_for_a_beginning(heard: list[RequestEvent]) -> None:
    strong, weak, both = Copy(), Copy(), Replicas()
    both.replace([(strong, 50.0), (weak, 10.0)])
    for number in range(5):
        both.submit(request(str(number)), heard.append)
    both.submit(request("there", LONG), heard.append)
    assert list(weak.open) == ["there"]
    for name in list(strong.open):
        strong.end(name)
    weak.end("there")
    both.submit(request("again", LONG), heard.append)
    assert list(strong.open) == ["again"]


def test_a_beginning_on_a_copy_that_is_gone_matters_no_more(heard: list[RequestEvent]) -> None:
    old, new, both = Copy(), Copy(), Replicas()
    both.replace([(old, 10.0), (new, 1.0)])
    both.submit(request("a", LONG), heard.append)
    both.remove(old)
    both.submit(request("b", LONG), heard.append)
    assert (list(old.open), list(new.open)) == (["a"], ["b"])


def test_too_many_that_wait_for_a_copy_are_told_to_come_again(heard: list[RequestEvent]) -> None:
    replicas = Replicas(max_waiting=2)
    for name in "ab":
        replicas.submit(request(name), heard.append)
    with pytest.raises(OverloadedError, match="2 requests wait for one, and at most 2 may") as refused:
        replicas.submit(request("c"), heard.append)
    assert refused.value.retry_seconds > 0
    replicas.cancel("a")
    replicas.submit(request("c"), heard.append)
    assert replicas.parked == 2
