from __future__ import annotations

import threading

from agent.doctor.check import Check
from agent.doctor.examination import Topic, examine, topics


def test_lines_come_in_the_topics_order_whichever_is_ready_first() -> None:
    second_is_done = threading.Event()

    def first() -> list[Check]:
        assert second_is_done.wait(60)
        return [Check("a", "ok", "1"), Check("a", "warning", "2", "do this")]

    def second() -> list[Check]:
        second_is_done.set()
        return [Check("b", "ok", "3")]

    told: list[tuple[float, float]] = []
    checks = examine((Topic("a", first), Topic("b", second)), lambda _, done, total: told.append((done, total)))
    assert [check.what for check in checks] == ["1", "2", "3"]
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_a_check_that_crashes_is_a_line() -> None:
    def crash() -> list[Check]:
        raise ZeroDivisionError("division by zero")

    crashed, good = examine((Topic("a", crash), Topic("b", lambda: [Check("b", "ok", "fine")])))
    assert (crashed.topic, crashed.status) == ("a", "fault")
    assert "ZeroDivisionError: division by zero" in crashed.what
    assert crashed.next_step
    assert good.status == "ok"


def test_a_check_that_hangs_is_a_line() -> None:
    released = threading.Event()

    def hang() -> list[Check]:
        released.wait(60)
        return []

    try:
        hung, good = examine((Topic("a", hang, seconds=0.1), Topic("b", lambda: [Check("b", "ok", "fine")])))
    finally:
        released.set()
    assert (hung.topic, hung.status, hung.what) == ("a", "fault", "no result within 0 s")
    assert good.status == "ok"


def test_a_head_is_looked_at_when_there_is_one() -> None:
    names = [topic.name for topic in topics(None)]
    assert len(names) == len(set(names)) == 11
    assert [topic.name for topic in topics(("host", 8115))] == [*names, "head"]
