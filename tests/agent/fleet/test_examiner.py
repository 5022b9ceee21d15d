"""A node that looks at itself, asked by a head over real sockets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from scripted_head import HARDWARE, PATIENCE, ScriptedHead, start_node

from agent import recent_log
from agent.doctor.check import Check
from agent.doctor.examination import Topic
from agent.fleet.control.messages import LONGEST_TEXT, MOST_FINDINGS, Examined, FromNode, TaskFailed
from agent.fleet.node import examiner
from agent.fleet.node.examiner import Examiner
from shards.errors import StageError

pytestmark = pytest.mark.usefixtures("nothing_stays")


def test_a_node_at_work_is_examined(head: ScriptedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_log, "lines", lambda: ("the first line", "the last line"))
    with start_node(head, tmp_path) as node:
        head.wait(1)
        said = head.orders.examine(node.key).result(PATIENCE)
    topics = dict.fromkeys(check.topic for check in said.checks)
    assert list(topics) == [topic.name for topic in Examiner(lambda: HARDWARE).topics()]
    assert "ports" not in topics  # which are a head's
    devices = [check.what for check in said.checks if check.topic == "devices"]
    assert devices[0] == "CPU: any"  # what was found before: OpenVINO is not loaded again
    assert said.log == ("the first line", "the last line")


def test_a_node_that_leaves_is_not_waited_for(
    head: ScriptedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(
        Examiner, "topics", lambda self: (Topic("slow", lambda: (release.wait(PATIENCE) and []) or []),)
    )
    with start_node(head, tmp_path) as node:
        head.wait(1)
        future = head.orders.examine(node.key)
    with pytest.raises(StageError, match="gone"):
        future.result(PATIENCE)
    release.set()


class Heard(dict[str, FromNode]):
    """What an examiner has told."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def tell(self, message: FromNode) -> None:
        assert isinstance(message, Examined | TaskFailed)
        with self._more:
            self[message.task] = message
            self._more.notify_all()

    def wait(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self) == count, PATIENCE)


def test_those_who_ask_meanwhile_get_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, release, heard = [], threading.Event(), Heard()

    def look() -> list[Check]:
        looks.append(1)
        assert release.wait(PATIENCE)
        return [Check("a", "ok", "fine")]

    monkeypatch.setattr(Examiner, "topics", lambda self: (Topic("a", look),))
    one = Examiner(lambda: HARDWARE)
    for task in "xyz":
        one.examine(task, heard.tell)
    release.set()
    heard.wait(3)
    assert set(heard) == set("xyz") and len(looks) == 1
    one.examine("later", heard.tell)
    heard.wait(4)
    assert len(looks) == 2


def test_what_is_found_is_made_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    check = Check("cache", "fault", "\udcff" + "x" * 2 * LONGEST_TEXT, "y" * 2 * LONGEST_TEXT)
    monkeypatch.setattr(Examiner, "topics", lambda self: (Topic("a", lambda: [check] * 2 * MOST_FINDINGS),))
    monkeypatch.setattr(recent_log, "lines", lambda: ("\udcff" + "z" * 2 * LONGEST_TEXT,) * 1000)
    Examiner(lambda: HARDWARE).examine("task", heard.tell)
    heard.wait(1)
    said = heard["task"]
    assert isinstance(said, Examined) and len(said.checks) == MOST_FINDINGS
    assert Examined.model_validate_json(said.model_dump_json()) == said
    assert (said.checks[0].what[:2], said.log[0][:2]) == ("?x", "?z")


def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()

    def fail(*_: object) -> list[Check]:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(examiner, "examine", fail)
    Examiner(lambda: HARDWARE).examine("task", heard.tell)
    heard.wait(1)
    said = heard["task"]
    assert isinstance(said, TaskFailed) and (said.task, said.what) == ("task", "ZeroDivisionError: a defect")
    assert "a defect" in caplog.text
