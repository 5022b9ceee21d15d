from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agent.fleet.control.messages import (
    LONGEST_TEXT,
    MOST_FINDINGS,
    MOST_LOG_LINES,
    CloseStage,
    Examine,
    Examined,
    Finding,
    FromStageProcess,
    LinkMeasure,
    LinksMeasured,
    MeasureLinks,
    MeasureModel,
    ModelMeasured,
    ModelRef,
    OpenStage,
    TaskFailed,
    TaskProgress,
    ToNode,
    ToStageProcess,
    from_node,
)
from agent.fleet.head.orders import Orders
from agent.fleet.head.remote_stage import RemoteStage
from pipeline.control import Bound, FromStage, Start, Stop
from pipeline.stages import Stage, stop
from shards.errors import StageError, WireError
from shards.profile import CostProfile
from shards.runtime import StageConfig

PC, OTHER = "p" * 40, "o" * 40
MODEL = ModelRef(package_id="0" * 64, name="model", holders=(OTHER,))
START = Start(config=StageConfig(package=Path("package"), first_layer=0, end_layer=2))
PROFILE = CostProfile(
    device="CPU", engine="openvino-paged", mode="fast", rows=(1,), fixed=(0,), embed=(0,), layer=(1,), head=(1,)
)


class Desk:
    """Orders, and what they told which node."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ToNode]] = []
        self.present = {PC, OTHER}
        self.orders = Orders(
            lambda node, message: self.told.append((node, message)),
            {PC: "pc", OTHER: "other"}.get,
            self.present.__contains__,
        )
        self.heard: list[FromStage | StageError] = []

    def measure(self) -> tuple[str, Future[ModelMeasured]]:
        future = self.orders.measure_model(PC, MODEL, ["openvino-paged"], "fast", "CPU")
        message = self.told[-1][1]
        assert isinstance(message, MeasureModel)
        return message.task, future

    def open(self) -> tuple[str, RemoteStage]:
        stage = self.orders.open_stage(PC, "pc (layers 0-1)", MODEL, START, lambda _, said: self.heard.append(said))
        message = self.told[-1][1]
        assert isinstance(message, OpenStage) and message.start == START
        return message.stage, stage


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_measurement_ends_in_what_the_node_found(desk: Desk) -> None:
    steps: list[tuple[str, float, float]] = []
    future = desk.orders.measure_model(
        PC, MODEL, ["openvino-paged"], "fast", "CPU", lambda what, done, total: steps.append((what, done, total))
    )
    (node, message), *_ = desk.told
    assert node == PC and isinstance(message, MeasureModel)
    desk.orders.hear(PC, TaskProgress(task=message.task, what="fetching", done=1, total=2))
    desk.orders.hear(PC, ModelMeasured(task=message.task, profiles=(PROFILE,)))
    assert future.result(0).profiles == (PROFILE,) and steps == [("fetching", 1, 2)]


def test_links_are_measured(desk: Desk) -> None:
    future = desk.orders.measure_links(PC, [OTHER])
    message = desk.told[-1][1]
    assert isinstance(message, MeasureLinks) and message.peers == (OTHER,)
    link = LinkMeasure(peer=OTHER, latency_ms=0.2, bytes_per_second=1e8)
    desk.orders.hear(PC, LinksMeasured(task=message.task, links=(link,)))
    assert future.result(0) == (link,)


def test_a_failed_measurement_names_the_node(desk: Desk) -> None:
    task, future = desk.measure()
    desk.orders.hear(PC, TaskFailed(task=task, what="the disk is full", hint="Free some space."))
    with pytest.raises(StageError, match=r"pc: the disk is full\. Free some space\."):
        future.result(0)


def test_a_node_cannot_answer_for_another(desk: Desk) -> None:
    task, future = desk.measure()
    stage, _ = desk.open()
    desk.orders.hear(OTHER, ModelMeasured(task=task, profiles=(PROFILE,)))
    desk.orders.hear(OTHER, TaskFailed(task=task, what="lies"))
    desk.orders.hear(OTHER, FromStageProcess(stage=stage, message=Bound(port=1)))
    desk.orders.hear(OTHER, TaskFailed(task=stage, what="lies"))
    assert not future.done() and not desk.heard


def test_what_was_never_ordered_is_ignored(desk: Desk) -> None:
    desk.orders.hear(PC, ModelMeasured(task="unheard of", profiles=(PROFILE,)))
    desk.orders.hear(PC, FromStageProcess(stage="unheard of", message=Bound(port=1)))
    desk.orders.hear(PC, TaskProgress(task="unheard of", what="?", done=0, total=1))


def test_a_node_that_is_gone_ends_all_that_it_was_at(desk: Desk) -> None:
    _, future = desk.measure()
    _, stage = desk.open()
    desk.orders.lose(OTHER, "switched off")
    assert not future.done() and not desk.heard
    desk.orders.lose(PC, "switched off")
    with pytest.raises(StageError, match=r"pc: the node is gone \(switched off\)"):
        future.result(0)
    assert [str(said) for said in desk.heard] == ["pc: the node is gone (switched off). Ask again in a moment."]
    assert stage.wait(0)
    desk.orders.lose(PC, "again")
    assert len(desk.heard) == 1


def test_a_stage_is_told_and_heard_through_its_node(desk: Desk) -> None:
    name, stage = desk.open()
    stage.tell(Stop())
    assert desk.told[-1] == (PC, ToStageProcess(stage=name, message=Stop()))
    desk.orders.hear(PC, FromStageProcess(stage=name, message=Bound(port=4711)))
    assert desk.heard == [Bound(port=4711)] and not stage.wait(0)
    desk.orders.hear(PC, TaskFailed(task=name, what="the process ended", where="layers 0-1"))
    assert stage.wait(0)
    assert str(desk.heard[-1]) == "pc: layers 0-1: the process ended"
    told = len(desk.told)
    stage.tell(Stop())
    assert len(desk.told) == told  # nobody is there to hear it


def test_a_stage_whose_node_does_not_answer_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.stages as stages

    for name in ("_STOP_SECONDS", "_TERMINATE_SECONDS", "_KILL_SECONDS"):
        monkeypatch.setattr(stages, name, 0.01)
    name, stage = desk.open()
    of_protocol: Stage = stage
    stop([of_protocol])
    assert desk.told[-2:] == [(PC, ToStageProcess(stage=name, message=Stop())), (PC, CloseStage(stage=name))]
    assert "does not say" in str(desk.heard[-1])


def test_an_order_for_a_node_that_has_just_left_fails_at_once(desk: Desk) -> None:
    desk.present.remove(PC)
    _, future = desk.measure()
    with pytest.raises(StageError, match="it has left"):
        future.result(0)
    _, stage = desk.open()
    assert stage.wait(0) and "it has left" in str(desk.heard[-1])


def examined(task: str) -> Examined:
    finding = Finding(topic="memory", status="warning", what="little is free", next_step="Close programs.")
    return Examined(task=task, checks=(finding,), log=("a line",))


def test_a_node_is_examined(desk: Desk) -> None:
    future = desk.orders.examine(PC)
    node, message = desk.told[-1]
    assert node == PC and isinstance(message, Examine)
    desk.orders.hear(OTHER, examined(message.task))
    assert not future.done()
    desk.orders.hear(PC, examined(message.task))
    assert future.result(0) == examined(message.task)


def test_an_answer_to_another_question_is_none(desk: Desk) -> None:
    future = desk.orders.examine(PC)
    message = desk.told[-1][1]
    assert isinstance(message, Examine)
    desk.orders.hear(PC, ModelMeasured(task=message.task, profiles=(PROFILE,)))
    desk.orders.hear(PC, LinksMeasured(task=message.task, links=()))
    assert not future.done()
    task, measured = desk.measure()
    desk.orders.hear(PC, examined(task))
    desk.orders.hear(PC, ModelMeasured(task=task, profiles=(PROFILE,)))
    assert measured.result(0).profiles == (PROFILE,)


def test_who_does_not_wait_any_more_gets_no_answer(desk: Desk) -> None:
    future = desk.orders.examine(PC)
    message = desk.told[-1][1]
    assert isinstance(message, Examine)
    assert future.cancel()
    assert not desk.orders._tasks
    desk.orders.hear(PC, examined(message.task))
    desk.orders.lose(PC, "switched off")
    assert future.cancelled()


@pytest.mark.parametrize(
    "wrong",
    [
        {"log": ["x" * (LONGEST_TEXT + 1)]},
        {"log": ["x"] * (MOST_LOG_LINES + 1)},
        {"checks": [{"topic": "a", "status": "ok", "what": "x"}] * (MOST_FINDINGS + 1)},
        {"checks": [{"topic": "a", "status": "fine", "what": "x"}]},
        {"checks": [{"topic": "a", "status": "ok", "what": "x" * (LONGEST_TEXT + 1)}]},
        {"more": 1},
    ],
)
def test_a_node_that_says_too_much_is_not_heard(wrong: dict[str, Any]) -> None:
    said = {"kind": "examined", "task": "t", "checks": [], "log": []}
    assert from_node(json.dumps(said).encode()) == Examined(task="t", checks=(), log=())
    with pytest.raises(WireError):
        from_node(json.dumps(said | wrong).encode())


def test_what_a_node_says_of_a_failure_is_cut(desk: Desk) -> None:
    task, future = desk.measure()
    long = "x" * 10**6
    desk.orders.hear(PC, TaskFailed(task=task, what=long, where=long, hint=long))
    assert len(str(future.exception())) < 4 * LONGEST_TEXT


def test_a_second_answer_and_a_late_one_change_nothing(desk: Desk) -> None:
    future = desk.orders.examine(PC)
    message = desk.told[-1][1]
    assert isinstance(message, Examine)
    first = Examined(task=message.task, checks=(), log=("first",))
    for answer in (first, first.model_copy(update={"log": ("second",)}), TaskFailed(task=message.task, what="late")):
        desk.orders.hear(PC, answer)
    assert future.result() == first
