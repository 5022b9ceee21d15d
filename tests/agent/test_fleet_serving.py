"""A fleet of one over real HTTP, with a tiny model: planned, looked into, and planned for other wishes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from eventually import eventually
from served_fleet import LONG, PATIENCE, ServedFleet, unsplit_answer, wait_for_heads

from agent import paths
from agent.fleet.head import at_work, fleet_model, node_record
from agent.fleet.head.fleet_model import FleetModel
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.node.node_settings import NodeSettings
from agent.fleet.node.node_stage import NodeStage
from agent.serving import Serving
from pipeline.chain import Chain
from pipeline.messages import RequestEvent
from pipeline.planning.plan import Wish
from pipeline.running import RunOptions
from pipeline.stages import LOOPBACK
from shards import manifest as manifests
from shards.errors import EdgeAgentError, StageError
from shards.manifest import WEIGHTS
from shards.progress import silent
from shards.runtime import StageConfig
from tui.client import state
from tui.client.plan import NodeDetail, Preview

WISH = Wish(users=2, context=2048, replicas=False)
OPTIONS = FleetOptions(
    wish=WISH,
    port=0,
    interface=LOOPBACK,
    announced=False,
    node=NodeSettings(name="desk", device="CPU", threads=1, memory=10**9),
)


class Fleet(ServedFleet):
    """A head that serves, and its keeper."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        assert serving.fleet is not None
        self.model = serving.fleet

    def apply(self, **changes: Any) -> httpx.Response:
        return self.http.post("/fleet/apply", json=changes)


@pytest.fixture(scope="module")
def works() -> list[dict[str, Any]]:
    """What the node was seen doing until the model was there."""
    return []


@pytest.fixture(scope="module")
def answer(tiny_chat_package: Path) -> str:
    """What it says, whatever has been changed."""
    return unsplit_answer(tiny_chat_package)


@pytest.fixture(scope="module")
def fleet(
    tiny_chat_package: Path, tmp_path_factory: pytest.TempPathFactory, works: list[dict[str, Any]]
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("head")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "config_folder", lambda: folder / "config")
        patch.setattr(paths, "cache_folder", lambda: folder / "cache")
        wait_for_heads(patch)
        options = RunOptions(mode="exact", kv_precision="f32", draft="ngram")
        with Serving(tiny_chat_package, options, fleet=OPTIONS, port=0) as serving:
            fleet = Fleet(serving)
            end = time.monotonic() + PATIENCE
            while not fleet.model.ready.wait(0.01):
                assert time.monotonic() < end, fleet.model.describe()
                works += [node["work"] for node in fleet.model.describe()["nodes"] if node["work"]]
            with fleet.http:
                yield fleet


def test_a_node_shows_what_it_does_before_it_serves(fleet: Fleet, works: list[dict[str, Any]]) -> None:
    assert any(work["what"].startswith("measuring") for work in works)
    assert any("(layers 0-3)" in work["what"] for work in works)
    assert all(0 <= work["done"] <= work["total"] for work in works)
    (node,) = fleet.get("/fleet")["nodes"]
    assert node["work"] is None


def test_each_chain_tells_what_guesses_for_it(fleet: Fleet) -> None:
    fleet.ask()
    (chain,) = fleet.get("/fleet")["chains"]
    told = chain["speculation"]
    assert (told["name"], told["off"]) == ("n-gram", None)
    assert (told["sent"], told["right"]) == (
        chain["scheduler"]["sent_guesses"],
        chain["scheduler"]["right_guesses"],
    )
    assert told["held_tokens"] > 0


def test_memory_planned_is_that_of_the_chains_at_work(fleet: Fleet, tiny_chat_package: Path) -> None:
    told = fleet.get("/fleet")
    (node,) = told["nodes"]
    (stage,) = told["plan"]["chains"][0]["stages"]
    assert node["memory_planned"] == stage["memory"] > manifests.read(tiny_chat_package).file(WEIGHTS).size


def test_the_precision_of_the_kv_cache_is_the_stages_and_the_plans(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = fleet.model._running
    (stage,) = planned.plan.stages
    kv_bytes = 2 * 2 * 16 * 4  # f32 keys and values of two heads of 16, in one layer
    assert stage.memory - fleet.model._size.stage(0, 4, 0) == 4 * planned.plan.kv_tokens * kv_bytes
    (told,) = fleet.get("/fleet")["chains"][0]["stages"]
    assert (told["properties"]["KV_CACHE_PRECISION"], told["kv_tokens"]) == ("f32", planned.plan.kv_tokens)
    started: list[StageConfig] = []

    def start(configs: list[StageConfig], **_: Any) -> None:
        started.extend(configs)
        raise StageError("that will do")

    monkeypatch.setattr(Chain, "start", start)
    with pytest.raises(StageError, match="will do"):
        fleet.model._opener.open(planned.plan, stage.node, silent)
    assert [config.kv_precision for config in started] == ["f32"]


def test_the_plan_at_work_is_the_current_one(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    preview = fleet.get("/fleet/plan")
    assert preview["is_current"] and preview["wish"] == fleet.get("/fleet")["wish"]
    assert preview["current"] == pytest.approx(preview["plan"]["prediction"]["many_users"])
    (record,) = fleet.model._fleet.nodes()
    (costs,) = record.costs
    flat = dict.fromkeys(("fixed", "embed", "layer", "head"), (1.0,) * len(costs.rows))
    monkeypatch.setattr(record, "costs", (costs.model_copy(update=flat),))  # more rows cost no more, for certain
    larger = fleet.get("/fleet/plan", users=6)
    assert not larger["is_current"] and larger["wish"]["users"] == 6
    assert 0 < larger["current"] < larger["plan"]["prediction"]["many_users"]  # the others of the six would wait
    assert fleet.get("/fleet")["wish"] == preview["wish"]


def test_a_wish_that_is_applied_is_planned_for(fleet: Fleet, answer: str) -> None:
    before = fleet.get("/fleet")
    users = before["wish"]["users"] + 1
    applied = fleet.apply(users=users)
    assert (applied.status_code, applied.json()["wish"]["users"]) == (200, users)
    (old,) = before["chains"]
    told = fleet.wait(lambda told: [chain["id"] for chain in told["chains"]] != [old["id"]] and told["chains"])
    assert told["wish"]["users"] == users
    assert told["chains"][0]["stages"][0]["kv_tokens"] >= WISH.context * users > old["stages"][0]["kv_tokens"]
    assert fleet.get("/fleet/plan")["is_current"]
    assert fleet.ask() == answer


def test_a_smaller_wish_is_met_by_what_is_at_work(fleet: Fleet) -> None:
    before = fleet.get("/fleet")
    assert fleet.apply(users=1).status_code == 200
    told = fleet.wait(lambda told: told["plan"]["prediction"]["users"] == 1)
    assert [chain["id"] for chain in told["chains"]] == [chain["id"] for chain in before["chains"]]
    assert told["nodes"][0]["memory_planned"] == before["nodes"][0]["memory_planned"]  # it goes on holding that


def test_without_room_for_both_a_wish_waits_until_nobody_asks(
    fleet: Fleet, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetModel, "_fits_beside", lambda *_: False)
    monkeypatch.setattr(fleet_model, "_SETTLE_SECONDS", 0.1)  # the answer is to last until it is planned
    before = fleet.get("/fleet")
    with fleet.http.stream("POST", "/v1/completions", json=LONG) as streamed:
        lines = streamed.iter_lines()
        next(lines)
        assert fleet.apply(users=5).status_code == 200
        told = fleet.wait(lambda told: told["problem"])
        assert "until nobody asks" in told["problem"]
        assert [chain["id"] for chain in told["chains"]] == [chain["id"] for chain in before["chains"]]
        next(lines)  # it goes on
    fleet.wait(lambda told: told["chains"] and told["chains"][0]["id"] != before["chains"][0]["id"])
    fleet.wait(lambda told: told["plan"] and told["plan"]["prediction"]["users"] == 5)
    fleet.wait(lambda told: told["problem"] is None)
    assert fleet.ask() == answer


@pytest.mark.parametrize("has_room", [True, False])
def test_a_wish_whose_stages_cannot_be_loaded_is_taken_back(
    fleet: Fleet, answer: str, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    monkeypatch.setattr(FleetModel, "_fits_beside", lambda *_: has_room)
    before = fleet.get("/fleet")
    fetch, failures = NodeStage._fetch, ["the process was killed"]

    def fail_once(stage: NodeStage) -> Any:
        if failures:
            raise StageError(failures.pop())
        return fetch(stage)

    def told_why(told: dict[str, Any]) -> list[str]:
        new = [event["what"] for event in told["events"][len(before["events"]) :]]
        return [what for what in new if "that did not work" in what]

    monkeypatch.setattr(NodeStage, "_fetch", fail_once)
    assert fleet.apply(users=7).status_code == 200
    told = fleet.wait(lambda told: not failures and told["wish"] == before["wish"] and told_why(told))
    (what,) = told_why(told)
    assert what.startswith("7 users") and "process was killed" in what
    told = fleet.wait(lambda told: told["chains"] and told["problem"] is None)
    assert told["nodes"][0]["problem"] is None  # it was the wish's fault
    ids = [[chain["id"] for chain in each["chains"]] for each in (told, before)]
    assert (ids[0] == ids[1]) is has_room
    assert fleet.ask() == answer


def stage_processes() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "pipeline.stage_process" in child.cmdline():
                found.append(child)
    return found


def kill_stage() -> None:
    assert eventually(lambda: len(stage_processes()) == 1)  # that of a chain before it may be ending still
    stage_processes()[0].kill()


def test_a_chain_that_ends_is_replaced_at_once(fleet: Fleet, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_model, "_LOOK_SECONDS", 1e6)  # only what is told counts
    fleet.model._changed.set()
    fleet.wait(lambda _: not fleet.model._changed.is_set())
    (copy,) = fleet.model.copies
    fail = copy.head._fail

    def fail_slowly(error: EdgeAgentError) -> Iterable[RequestEvent]:
        time.sleep(0.3)  # a head with other things to do
        return fail(error)

    monkeypatch.setattr(copy.head, "_fail", fail_slowly)
    kill_stage()
    fleet.wait(lambda told: fleet.model.copies and copy not in fleet.model.copies)
    assert fleet.ask() == answer
    monkeypatch.undo()
    fleet.model._changed.set()  # the long look is over


def test_what_works_is_not_given_up_for_a_node_that_has_failed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_record, "_FIRST_PAUSE", 1.0)
    before = fleet.get("/fleet")
    (record,) = fleet.model._fleet.nodes()
    with monkeypatch.context() as patch:  # another plan would be better, and there is no room to try it
        patch.setattr(FleetModel, "_fits_beside", lambda *_: False)
        patch.setattr(at_work, "kept", lambda *_: {})
        patch.setattr(fleet.model._opener, "rate", lambda *_: 1e-3)
        record.failures = 1
        fleet.model._changed.set()
        told = fleet.wait(lambda told: told["nodes"][0]["problem"])
    assert "there is no room to try it beside what is at work" in told["nodes"][0]["problem"]
    monkeypatch.setattr(fleet_model, "_LOOK_SECONDS", 0.2)
    fleet.model._changed.set()
    after = fleet.wait(lambda told: told["nodes"][0]["problem"] is None and told["problem"] is None)
    assert [chain["id"] for chain in after["chains"]] == [chain["id"] for chain in before["chains"]]
    record.failures = 0


def test_a_node_whose_stage_was_killed_is_tried_again(
    fleet: Fleet, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_record, "_FIRST_PAUSE", 2.0)
    monkeypatch.setattr(fleet_model, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(fleet_model, "_RETRY_SECONDS", 0.2)
    before = fleet.get("/fleet")
    failing, fetch = threading.Event(), NodeStage._fetch
    failing.set()

    def fail(stage: NodeStage) -> Any:
        if failing.is_set():
            raise StageError("the peer was lost")
        return fetch(stage)

    monkeypatch.setattr(NodeStage, "_fetch", fail)
    kill_stage()
    told = fleet.wait(lambda told: told["nodes"][0]["problem"])
    assert "the peer was lost (tried again in" in told["nodes"][0]["problem"]
    assert fleet.wait(lambda told: told["problem"])["left_out"] == {}
    failing.clear()
    told = fleet.wait(lambda told: told["chains"] and told["problem"] is None)
    assert told["chains"][0]["id"] != before["chains"][0]["id"] and told["nodes"][0]["problem"] is None
    assert fleet.ask() == answer


def test_a_node_that_is_measured_again_goes_on_serving(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fleet.get("/fleet")
    (node,) = before["nodes"]
    asked: list[Any] = []
    measure = fleet.model._fleet.orders.measure_model

    def slowly(*given: Any, **options: Any) -> Any:
        asked.append(options["again"])
        assert fleet.get("/fleet/plan")["is_current"]  # what was found before counts until then
        return measure(*given, **options)

    monkeypatch.setattr(fleet.model._fleet.orders, "measure_model", slowly)
    fleet.model._survey.discard(node["key"])
    fleet.model._changed.set()
    fleet.wait(lambda told: asked and not fleet.model._survey._again)
    after = fleet.get("/fleet")
    assert asked == [True] and after["problem"] is None
    assert [chain["id"] for chain in after["chains"]] == [chain["id"] for chain in before["chains"]]


def test_who_carries_stages_has_a_name(fleet: Fleet) -> None:
    (node,) = fleet.get("/fleet")["nodes"]
    assert fleet.get("/fleet")["carriers"] == {node["key"]: node["name"]}


def test_of_nodes_that_have_left_nothing_is_told(fleet: Fleet) -> None:
    (node,) = fleet.get("/fleet")["nodes"]
    fleet.model._left_out = {"g" * 40: "it would slow the fleet down", node["key"]: "it is not needed"}
    assert fleet.get("/fleet")["left_out"] == {node["key"]: "it is not needed"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"users": 1024, "context": 4096}, "of memory are missing"),
        ({"context": 100_000}, "100000 tokens are asked for, and the model's context is 4096"),
        ({"stages": 2}, "2 stages need as many nodes, and 1 are there"),
        ({"stages": 5}, "4 layers cannot be split into 5 stages"),
    ],
)
def test_an_impossible_wish_changes_nothing(fleet: Fleet, changes: dict[str, int], words: str) -> None:
    before = fleet.get("/fleet")
    answer = fleet.apply(**changes)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    answer = fleet.http.get("/fleet/plan", params=changes)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    after = fleet.get("/fleet")
    assert (after["wish"], after["plan"], after["problem"]) == (before["wish"], before["plan"], None)


def test_what_is_told_is_what_the_screen_reads(fleet: Fleet) -> None:
    said = fleet.wait(lambda told: told["nodes"][0]["condition"]["load"] is not None)  # comes with a heartbeat
    told = state.Fleet.model_validate(said)
    (node,) = told.nodes
    assert node.memory_planned == said["nodes"][0]["memory_planned"] > 0
    assert told.fleet is not None and node.condition.load is not None
    preview = Preview.model_validate(fleet.get("/fleet/plan"))
    assert preview.is_current and preview.current and preview.nodes == {node.key: "desk"}
    detail = NodeDetail.model_validate(fleet.get("/fleet/nodes/desk"))
    assert detail.node == node.model_copy(update={"condition": detail.node.condition})
    assert detail.milliseconds and detail.checks


def test_a_node_in_detail(fleet: Fleet) -> None:
    (node,) = fleet.get("/fleet")["nodes"]
    by_name = fleet.get("/fleet/nodes/desk")
    assert by_name["problem"] is None
    assert {check["topic"] for check in by_name["checks"]} > {"versions", "devices", "memory"}
    assert by_name["node"]["key"] == node["key"] and by_name["node"]["memory_planned"] == node["memory_planned"]
    measured = by_name["milliseconds"]
    assert len(measured["rows"]) == len(measured["layer"]) == len(measured["head"])
    assert fleet.http.get("/fleet/nodes/attic").status_code == 404
