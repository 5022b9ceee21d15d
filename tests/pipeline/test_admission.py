from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from simulated_chain import TimedChain, request

from pipeline.admission import AdmissionQueue
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence


class Line:
    """A queue and its clock."""

    def __init__(self, ageing: float = 0.1) -> None:
        self.queue = AdmissionQueue(ageing)

    def add(self, name: str, at: float = 0.0, priority: int = 0) -> Sequence:
        """The first letter of the name is the client."""
        sequence = Sequence(request(name, client=name[0], priority=priority))
        self.queue.add(sequence, at)
        return sequence

    def pop(self, at: float = 0.0) -> str:
        sequence = self.queue.peek(at)
        assert sequence is not None
        self.queue.pop(sequence, at)
        return sequence.request.id

    def rest(self, at: float = 0.0) -> list[str]:
        return [self.pop(at) for _ in range(len(self.queue))]


def test_nobody_waits() -> None:
    assert Line().queue.peek(0.0) is None
    assert len(Line().queue) == 0


def test_first_come_first_served_among_equals() -> None:
    line = Line()
    for i in range(20):
        line.add(f"a{i}", at=i // 7)
    assert line.rest(at=5.0) == [f"a{i}" for i in range(20)]


def test_the_larger_priority_goes_first_between_and_within_clients() -> None:
    line = Line()
    for name, priority in (("a1", 0), ("b1", 1), ("a2", 2), ("b2", 3)):
        line.add(name, priority=priority)
    assert line.rest() == ["b2", "a2", "b1", "a1"]


def test_waiting_makes_up_for_priority() -> None:
    for other in ("a-new", "b-new"):
        line = Line(ageing=0.1)
        line.add("a-old", at=0.0, priority=0)
        line.add(other, at=29.0, priority=3)
        assert line.pop(at=29.0) == other
        line.add(other, at=31.0, priority=3)
        assert line.pop(at=31.0) == "a-old"


def test_clients_take_turns_though_one_has_fifty_waiting() -> None:
    line = Line()
    for i in range(50):
        line.add(f"a{i}")
    line.add("b0")
    line.add("c0")
    line.add("c1")
    assert [line.pop() for _ in range(6)] == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_a_backlog_gives_no_right_over_one_who_comes_later() -> None:
    line = Line()
    for i in range(50):
        line.add(f"a{i}", at=0.0)
    served = [line.pop(at=10.0 * i) for i in range(10)]
    line.add("b0", at=99.0)
    served += [line.pop(at=10.0 * i) for i in range(10, 14)]
    assert served.index("b0") in (10, 11)


def test_remove_from_anywhere() -> None:
    line = Line()
    sequences = {name: line.add(name) for name in ("a0", "a1", "a2", "b0")}
    line.queue.remove(sequences["a1"])
    line.queue.remove(sequences["b0"])
    assert line.rest() == ["a0", "a2"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=30), st.integers(-3, 3))
def test_nobody_starves(crowd: list[tuple[str, int]], priority: int) -> None:
    line = Line(ageing=1.0)
    line.add("z", at=0.0, priority=priority)
    for turn in range(60):  # each second one goes, and one of a crowd of any priority comes
        if crowd:
            client, urgent = crowd[turn % len(crowd)]
            line.add(f"{client}{turn}", at=float(turn), priority=urgent)
        if line.pop(at=float(turn)) == "z":
            return
    raise AssertionError("z has waited 60 seconds")


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
