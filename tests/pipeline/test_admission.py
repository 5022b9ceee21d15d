from __future__ import annotations

import weakref

from simulated_chain import TimedChain, request
from waiting_line import Server, WaitingLine

from pipeline.admission import BATCH_PATIENCE_SECONDS
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig


def test_nobody_waits() -> None:
    line = WaitingLine()
    assert line.queue.peek(0.0) is None
    assert len(line.queue) == 0
    assert not line.queue.has_interactive


# Within a client


def test_first_come_first_served_among_equals() -> None:
    line = WaitingLine()
    for i in range(20):
        line.add(f"a{i}", at=i // 7)
    assert line.rest() == [f"a{i}" for i in range(20)]


def test_the_larger_priority_goes_first_within_a_client_and_nowhere_else() -> None:
    line = WaitingLine()
    for name, priority in (("a1", 0), ("a2", 2), ("b1", 9), ("b2", 7)):
        line.add(name, priority=priority)
    assert line.rest() == ["a2", "b1", "a1", "b2"]


def test_waiting_makes_up_for_priority() -> None:
    line = WaitingLine(ageing=0.1)
    line.add("a-old", at=0.0, priority=0)
    line.add("a-new", at=29.0, priority=3)
    assert line.pop(at=29.0) == "a-new"
    line.add("a-late", at=31.0, priority=3)
    assert line.pop(at=31.0) == "a-old"


def test_short_prompts_pass_a_long_one_until_it_has_waited_for_its_length() -> None:
    line = WaitingLine(ageing=0.1)
    line.add("a-long", at=0.0, prompt=4096)
    line.add("a-short", at=1.0)
    assert line.pop() == "a-short"
    line.add("a-late", at=11.0)  # a level of priority is ten seconds, or 4096 tokens of a prompt
    assert line.rest() == ["a-long", "a-late"]


# Between clients


def test_clients_take_turns_though_one_has_fifty_waiting() -> None:
    line = WaitingLine()
    for i in range(50):
        line.add(f"a{i}")
    line.add("b0")
    line.add("c0")
    line.add("c1")
    assert [line.pop() for _ in range(6)] == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_the_client_that_was_given_least_goes_first() -> None:
    line = WaitingLine()
    for name in ("a0", "b0", "c0"):
        line.add(name)
    line.queue.charge("a", 500)
    line.queue.charge("b", 300)
    assert line.rest() == ["c0", "b0", "a0"]


def test_rows_count_where_nothing_of_the_client_waits_either() -> None:
    line = WaitingLine()
    line.add("a0")
    line.add("b0")
    assert line.pop() == "a0"
    line.queue.charge("a", 1)
    line.queue.charge("a", 400)
    line.add("a1")
    line.add("b1")
    assert line.rest() == ["b0", "b1", "a1"]


def test_a_prompt_counts_when_it_has_its_turn_and_only_once() -> None:
    line = WaitingLine()
    line.add("a0", prompt=300)
    for name in ("a1", "a2", "b0", "b1", "b2", "b3"):
        line.add(name, prompt=100)
    line.queue.charge("b", 50)
    assert [line.pop() for _ in range(4)] == ["a1", "b0", "a2", "b1"]
    for client in ("a", "b"):
        line.queue.charge(client, 200)  # the rows of those prompts
    assert line.pop() == "a0"
    assert line.rest() == ["b2", "b3"]


def test_a_backlog_gives_no_right_over_one_who_comes_later() -> None:
    line = WaitingLine()
    for i in range(50):
        line.add(f"a{i}", at=0.0)
    served = [line.pop(at=10.0 * i) for i in range(10)]
    line.add("b0", at=99.0)
    served += [line.pop(at=10.0 * i) for i in range(10, 14)]
    assert served.index("b0") in (10, 11)


def test_who_comes_back_has_saved_up_nothing() -> None:
    line = WaitingLine()
    server = Server(line, slots=1)
    line.add("c0", answer=50)
    for client in "ab":
        for i in range(200):
            line.add(f"{client}{i}", answer=50)
    while server.given["a"] + server.given["b"] < 6000:
        server.step()
    server.given.clear()
    for i in range(100):
        line.add(f"c-back{i}", answer=50)
    while server.given.total() < 3000:
        server.step()
    assert max(server.given.values()) - min(server.given.values()) <= 100


def test_a_client_that_was_given_much_while_nobody_waited_owes_nothing() -> None:
    line = WaitingLine()
    line.add("a0")
    line.pop()
    line.queue.charge("a", 10_000)
    line.add("a1")
    line.add("b0")
    assert line.rest() == ["a1", "b0"]


def test_prompts_that_were_cancelled_before_they_ran_are_no_credit() -> None:
    line = WaitingLine()
    for i in range(3):
        line.add(f"a{i}", prompt=4000)
        line.add(f"b{i}")
        assert {line.pop(), line.pop()} == {f"a{i}", f"b{i}"}
        line.now += 600
    server = Server(line, slots=1)
    for i in range(100):
        line.add(f"a-late{i}", answer=20)
        line.add(f"b-late{i}", answer=20)
    for _ in range(1500):
        server.step()
        assert abs(server.given["a"] - server.given["b"]) <= 2 * 21


def test_clients_that_left_are_forgotten_though_others_always_wait() -> None:
    class Name(str):
        """A name that tells whether it is still held."""

    line = WaitingLine()
    server = Server(line, slots=2)
    names: list[weakref.ref[Name]] = []
    for number in range(3000):
        name = Name(f"client {number}")
        names.append(weakref.ref(name))
        line.add(f"r{number}", client=name, answer=20)
        del name
        while len(line.queue) > 5:
            server.step()
            server.given.clear()  # it would hold the names
            assert line.queue.has_interactive
    assert sum(name() is not None for name in names) < 300


def test_remove_from_anywhere() -> None:
    line = WaitingLine()
    sequences = {name: line.add(name) for name in ("a0", "a1", "a2", "b0")}
    line.queue.remove(sequences["a1"])
    line.queue.remove(sequences["b0"])
    assert len(line.queue) == 2
    assert line.rest() == ["a0", "a2"]
    assert line.queue.peek(0.0) is None


# Classes


def test_batch_waits_for_all_interactive_ones() -> None:
    line = WaitingLine()
    line.add("a-batch", service="batch")
    assert not line.queue.has_interactive
    line.add("a0")
    line.add("b0")
    line.queue.charge("b", 10_000)
    assert line.queue.has_interactive
    assert len(line.queue) == 3
    assert line.rest() == ["a0", "b0", "a-batch"]


def test_one_batch_request_goes_when_none_has_for_long() -> None:
    line = WaitingLine()
    for i in range(3):
        line.add(f"batch{i}", service="batch")
    for i in range(6):
        line.add(f"a{i}")
    late = BATCH_PATIENCE_SECONDS
    assert line.pop(at=late - 1) == "a0"
    assert [line.pop(at=late), line.pop(at=late), line.pop(at=2 * late - 1)] == ["batch0", "a1", "a2"]
    assert [line.pop(at=2 * late), line.pop(at=2 * late)] == ["batch1", "a3"]
    assert line.rest() == ["a4", "a5", "batch2"]


def test_batch_work_is_no_burden_on_a_clients_interactive_requests() -> None:
    line = WaitingLine()
    for name in ("a-batch", "b-batch"):
        line.add(name, service="batch")
    line.queue.charge("a", 10_000, "batch")
    line.add("a0")
    line.add("b0")
    assert line.rest() == ["a0", "b0", "b-batch", "a-batch"]


def test_one_request_passes_a_crowd_through_the_whole_scheduler() -> None:
    config = SchedulerConfig(kv_tokens=4096, block=16, context_length=512, stages=2, max_sequences=4)
    chain = TimedChain(Scheduler(config), lambda rows: 1.0)
    for i in range(50):
        chain.arrive(0.0, request(f"crowd{i}", [i, 1], 20, client="crowd"))
    chain.arrive(33.0, request("one", [7, 7], 20, client="one"))
    chain.run()
    order = sorted(chain.tokens_at, key=lambda name: chain.tokens_at[name][-1])
    assert order.index("one") < 12
    assert len(order) == 51
