"""Properties of the waiting queue, whatever comes."""

from __future__ import annotations

import random
from itertools import cycle
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting_line import AGEING, Server, WaitingLine

from pipeline.admission import BATCH_PATIENCE_SECONDS
from pipeline.messages import Service
from pipeline.sequence import Sequence

LEVEL_TOKENS, LEVEL_PROMPT = 100, 4096
"""Tokens given, and tokens of a prompt, that weigh as much as a level of priority."""


class Ask(NamedTuple):
    """What somebody asks for."""

    client: str
    prompt: int = 1
    answer: int = 1
    priority: int = 0
    service: Service = "interactive"


def asks(clients: str, services: tuple[Service, ...] = ("interactive",)) -> st.SearchStrategy[Ask]:
    return st.builds(
        Ask,
        st.sampled_from(clients),
        st.integers(1, 60),
        st.integers(1, 60),
        st.integers(-2, 3),
        st.sampled_from(services),
    )


@given(
    crowd=st.lists(asks("abcz*", ("interactive", "batch")), min_size=1, max_size=12),
    early=st.integers(0, 20),
    mine=asks("z", ("interactive", "batch")),
    given_before=st.integers(0, 500),
)
@settings(max_examples=150, deadline=None)
def test_nobody_starves(crowd: list[Ask], early: int, mine: Ask, given_before: int) -> None:
    """Each second one has its turn and one comes, for ever; `*` is another client each time."""
    line, arrivals = WaitingLine(), cycle(crowd)

    def come(number: int) -> None:
        ask = next(arrivals)
        client = f"new {number}" if ask.client == "*" else ask.client
        line.add(f"r{number}", client=client, prompt=ask.prompt, priority=ask.priority, service=ask.service)

    for number in range(early):
        come(number)
    line.queue.charge("z", given_before, mine.service)
    line.add("mine", client="z", prompt=mine.prompt, priority=mine.priority, service=mine.service)
    waiting = len(line.queue)

    # After so long nobody who comes goes before it, neither of its own client nor another one.
    own = ((3 - mine.priority) + 60 / LEVEL_PROMPT) / AGEING
    # its client's turns before it count too, each with its prompt
    turns_of_own = waiting + own
    others = (given_before + 60 * turns_of_own) / LEVEL_TOKENS / AGEING
    bound = own + others + waiting + own + 2
    if mine.service == "batch":  # in the worst case only every 30 seconds one goes
        bound *= BATCH_PATIENCE_SECONDS + 1
    for number in range(early, early + int(bound) + 1):
        line.now += 1.0
        come(number)
        if line.pop() == "mine":
            return
    raise AssertionError(f"it has waited for {line.now:g} s")


@given(
    sizes=st.lists(
        st.lists(st.tuples(st.integers(1, 80), st.integers(1, 80)), min_size=1, max_size=4), min_size=2, max_size=5
    ),
    slots=st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_equal_clients_get_equal_tokens_whatever_the_sizes_of_their_requests(
    sizes: list[list[tuple[int, int]]], slots: int
) -> None:
    """Each client always has something waiting."""
    line = WaitingLine()
    server = Server(line, slots, step_seconds=0.001)
    names = [f"client {i}" for i in range(len(sizes))]
    wanted = {name: cycle(own) for name, own in zip(names, sizes, strict=True)}
    numbers = iter(range(10**9))

    def ask(client: str) -> None:
        prompt, answer = next(wanted[client])
        line.add(f"r{next(numbers)}", client=client, prompt=prompt, answer=answer)

    for name in names:
        for _ in range(slots + 1):
            ask(name)
    # All that runs may be one client's, and what waiting makes up for is less than a request here.
    bound = (slots + 1) * 160
    apart = 0
    for _ in range(4000):
        for ended in server.step():
            ask(ended.request.client)
        got = [server.given[name] for name in names]
        apart = max(apart, max(got) - min(got))
    assert apart <= bound
    assert min(server.given[name] for name in names) > 0


@given(crowd=st.integers(2, 50), size=st.integers(1, 60), others=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_fifty_requests_count_as_one(crowd: int, size: int, others: int) -> None:
    """Whatever the backlog of one, its share is that of the others, each of which asks again when it is answered."""
    line = WaitingLine()
    server = Server(line, slots=1)
    for i in range(crowd * 40):
        line.add(f"crowd{i}", client="crowd", answer=size)
    for i in range(others):
        line.add(f"{i}", client=f"other {i}", answer=size)
    while server.given.total() < 30 * (others + 1) * (size + 1):
        for ended in server.step():
            if ended.request.client != "crowd":
                line.add(ended.request.id, client=ended.request.client, answer=size)
    assert server.given["crowd"] <= min(server.given[f"other {i}"] for i in range(others)) + 2 * (size + 1)


@given(before=st.integers(0, 3000), away=st.floats(0, 10_000), size=st.integers(1, 60), others=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_who_comes_back_has_no_credit(before: int, away: float, size: int, others: int) -> None:
    line = WaitingLine()
    server = Server(line, slots=1)
    if before:
        line.add("early", client="back")
        line.take()
        line.queue.charge("back", before)
    line.now += away
    names = [f"other {i}" for i in range(others)]
    for i in range(100):
        for name in names:
            line.add(f"{name} {i}", client=name, answer=size)
    for _ in range(10 * others * (size + 1)):
        server.step()
    server.given.clear()
    for i in range(60):
        line.add(f"back {i}", client="back", answer=size)
    for _ in range(20 * others * (size + 1)):
        server.step()
        assert server.given["back"] <= min(server.given[name] for name in names) + 2 * (size + 1)


@given(history=st.lists(asks("abcd", ("interactive", "batch")), max_size=40), slots=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_order_follows_from_the_history(history: list[Ask], slots: int) -> None:
    def order() -> list[tuple[str, float]]:
        line = WaitingLine()
        server = Server(line, slots)
        for number, ask in enumerate(history):
            line.add(f"r{number}", **ask._asdict())
            server.step()
        while server.running or len(line.queue):
            server.step()
        return list(server.began.items())

    first = order()
    assert len(first) == len(history)
    assert order() == first


@given(
    history=st.lists(
        st.tuples(
            st.sampled_from(("add", "remove", "pop", "charge")),
            asks("abc", ("interactive", "batch")),
            st.randoms(use_true_random=False),
        ),
        max_size=80,
    )
)
@settings(max_examples=150, deadline=None)
def test_what_waits_is_what_came_and_has_not_gone(history: list[tuple[str, Ask, random.Random]]) -> None:
    line = WaitingLine()
    waiting: list[Sequence] = []
    for what, ask, pick in history:
        line.now += pick.choice((0.0, 1.0, 20.0))
        if what == "add":
            waiting.append(line.add("r", **ask._asdict()))
        elif what == "charge":
            line.queue.charge(ask.client, ask.answer, ask.service)
        elif waiting and what == "remove":
            line.queue.remove(waiting.pop(pick.randrange(len(waiting))))
        elif waiting:
            waiting.remove(line.take())
        assert len(line.queue) == len(waiting)
        assert line.queue.has_interactive == any(s.request.service == "interactive" for s in waiting)
        first = line.queue.peek(line.now)
        assert first is line.queue.peek(line.now)
        assert first in waiting if waiting else first is None
