"""Looking after a fleet over HTTP; the fleet is a test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from fake_head import Api, StartApi

from agent.api import fleet as fleet_api
from agent.fleet.control.messages import Examined, Finding
from pipeline.messages import RequestEvent
from shards.errors import CapacityError, RequestError, StageError

KEY = "the owner's key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
WILD_KEY = "a/b?c#d%20e" + "f" * 29
"""A key has such characters."""


class Fleet:
    """A FleetControl that knows one node that waits, and one that is in."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.examined: Future[Examined] = Future()

    def describe(self) -> dict[str, Any]:
        return {"fleet": {"name": "home"}, "nodes": [], "pending": [{"code": "ABCD-EFGH"}], "events": []}

    def name_of(self, node: str) -> str:
        return node

    def approve(self, code: str) -> str:
        if code != "ABCD-EFGH":
            raise RequestError(f"no node waits with code {code!r}", where="code")
        return "pc-2"

    def refuse(self, code: str) -> str:
        self.asked.append(("refuse", code))
        return self.approve(code)

    def forget(self, node: str) -> str:
        if node != "pc-2":
            raise RequestError(f"no member is called {node!r}", where="node")
        return node

    def renew_token(self) -> None:
        self.asked.append("renew")

    def plan(self, changes: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(changes)
        if changes.get("users") == 1000:
            raise CapacityError("900 GB are missing")
        return {"plan": {}}

    def apply(self, changes: dict[str, Any]) -> dict[str, Any]:
        self.plan(changes)
        return {"users": changes.get("users", 4)}

    def node(self, node: str) -> tuple[dict[str, Any], Future[Examined]]:
        if node not in ("pc-2", WILD_KEY):
            raise RequestError(f"no node that is here is called {node!r}", where="node")
        return {"node": {"name": "pc-2"}, "milliseconds": None}, self.examined


def script(_: object) -> Iterator[RequestEvent | float]:
    return iter(())


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def api(start_api: StartApi, fleet: Fleet) -> Api:
    return start_api(script, fleet=fleet, fleet_key=KEY)


def test_the_fleet_is_part_of_the_status(api: Api) -> None:
    told = api.http.get("/fleet").json()
    assert told["fleet"] == {"name": "home"} and told["pending"] == [{"code": "ABCD-EFGH"}]
    assert told["chains"][0]["stages"] == []


def test_a_node_is_approved_and_forgotten(api: Api) -> None:
    answer = api.http.post("/fleet/approve", json={"code": "ABCD-EFGH"}, headers=HEADERS)
    assert (answer.status_code, answer.json()) == (200, {"node": "pc-2"})
    answer = api.http.post("/fleet/forget", json={"node": "pc-2"}, headers=HEADERS)
    assert (answer.status_code, answer.json()) == (200, {"node": "pc-2"})


@pytest.mark.parametrize(
    "path, body",
    [("approve", {"code": "WXYZ-WXYZ"}), ("refuse", {"code": "WXYZ-WXYZ"}), ("forget", {"node": "pc-9"})],
)
def test_an_unknown_one_is_named(api: Api, path: str, body: dict[str, str]) -> None:
    answer = api.http.post(f"/fleet/{path}", json=body, headers=HEADERS)
    assert answer.status_code == 400 and next(iter(body.values())) in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}])
def test_nobody_looks_after_the_fleet_without_the_owners_key(api: Api, fleet: Fleet, headers: dict[str, str]) -> None:
    for path, body in (
        ("approve", {"code": "ABCD-EFGH"}),
        ("refuse", {"code": "ABCD-EFGH"}),
        ("forget", {"node": "pc-2"}),
        ("apply", {"users": 2}),
        ("renew-token", {}),
    ):
        assert api.http.post(f"/fleet/{path}", json=body, headers=headers).status_code == 401
    for path in ("plan", "nodes/pc-2"):
        assert api.http.get(f"/fleet/{path}", headers=headers).status_code == 401
    assert not fleet.asked


def test_the_owners_key_is_enough_where_requests_have_another(start_api: StartApi, fleet: Fleet) -> None:
    api = start_api(script, fleet=fleet, fleet_key=KEY, key="the users' key")
    for headers, status in ((HEADERS, 200), ({"Authorization": "Bearer the users' key"}, 401)):
        assert api.http.post("/fleet/renew-token", json={}, headers=headers).status_code == status
        assert api.http.get("/fleet", headers=headers).status_code == 200
    assert fleet.asked == ["renew"]


@pytest.mark.parametrize("body", [{}, {"code": 7}, {"code": "A", "more": 1}, {"code": "A" * 65}])
def test_a_body_that_is_none_is_refused_by_field(api: Api, body: dict[str, Any]) -> None:
    answer = api.http.post("/fleet/approve", json=body, headers=HEADERS)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in ("code", "more")


def test_a_plan_is_asked_for_with_changes_only(api: Api, fleet: Fleet) -> None:
    assert api.http.get("/fleet/plan?users=8&replicas=false", headers=HEADERS).json() == {"plan": {}}
    assert api.http.get("/fleet/plan", headers=HEADERS).status_code == 200
    assert fleet.asked == [{"users": 8, "replicas": False}, {}]
    refused = api.http.get("/fleet/plan?users=1000", headers=HEADERS)
    assert refused.status_code == 400 and "900 GB are missing" in refused.json()["error"]["message"]
    assert api.http.get("/fleet/plan?users=0", headers=HEADERS).status_code == 400


def test_the_token_is_renewed_and_not_told(api: Api, fleet: Fleet) -> None:
    answer = api.http.post("/fleet/renew-token", json={}, headers=HEADERS)
    assert (answer.status_code, answer.json(), fleet.asked) == (200, {}, ["renew"])


def test_a_node_is_refused(api: Api, fleet: Fleet) -> None:
    answer = api.http.post("/fleet/refuse", json={"code": "ABCD-EFGH"}, headers=HEADERS)
    assert (answer.status_code, answer.json()) == (200, {"node": "pc-2"})
    assert fleet.asked == [("refuse", "ABCD-EFGH")]


def test_a_wish_is_applied(api: Api, fleet: Fleet) -> None:
    answer = api.http.post("/fleet/apply", json={"users": 8, "replicas": False}, headers=HEADERS)
    assert (answer.status_code, answer.json()) == (200, {"wish": {"users": 8}})
    assert api.http.post("/fleet/apply", json={"stages": 0, "users": None}, headers=HEADERS).status_code == 200
    assert fleet.asked == [{"users": 8, "replicas": False}, {"stages": None}]


def test_as_many_stages_as_are_best_can_be_asked_for_in_a_preview_too(api: Api, fleet: Fleet) -> None:
    assert api.http.get("/fleet/plan?stages=0&context=100", headers=HEADERS).status_code == 200
    assert fleet.asked == [{"stages": None, "context": 100}]


def test_what_does_not_fit_is_not_applied(api: Api) -> None:
    answer = api.http.post("/fleet/apply", json={"users": 1000}, headers=HEADERS)
    assert answer.status_code == 400 and "900 GB are missing" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"users": 0}, {"users": 1025}, {"context": 0}, {"stages": -1}, {"pages": 1}])
def test_a_wish_that_is_none_is_refused_by_field(api: Api, fleet: Fleet, body: dict[str, int]) -> None:
    (field,) = body
    answer = api.http.post("/fleet/apply", json=body, headers=HEADERS)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field
    answer = api.http.get("/fleet/plan", params=body, headers=HEADERS)
    assert answer.status_code == 400 and answer.json()["error"]["param"].endswith(field)
    assert not fleet.asked


@pytest.mark.parametrize("name", ["pc-2", WILD_KEY])
def test_a_node_in_detail(api: Api, fleet: Fleet, name: str) -> None:
    finding = Finding(topic="memory", status="warning", what="little is free")
    fleet.examined.set_result(Examined(task="t", checks=(finding,), log=("a line",)))
    answer = api.http.get(f"/fleet/nodes/{quote(name, safe='')}", headers=HEADERS)
    assert answer.status_code == 200
    assert answer.json() == {
        "node": {"name": "pc-2"},
        "milliseconds": None,
        "log": ["a line"],
        "checks": [{"topic": "memory", "status": "warning", "what": "little is free", "next_step": None}],
        "problem": None,
    }


def test_a_node_that_is_not_there(api: Api) -> None:
    answer = api.http.get("/fleet/nodes/pc-9", headers=HEADERS)
    assert answer.status_code == 404 and "pc-9" in answer.json()["error"]["message"]


def test_a_node_that_cannot_be_asked(api: Api, fleet: Fleet) -> None:
    fleet.examined.set_exception(StageError("the node is gone", where="pc-2"))
    answer = api.http.get("/fleet/nodes/pc-2", headers=HEADERS).json()
    assert (answer["node"], answer["log"], answer["checks"]) == ({"name": "pc-2"}, [], [])
    assert answer["problem"] == "pc-2: the node is gone"


def test_a_node_that_does_not_answer(api: Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "NODE_SECONDS", 0.1)
    answer = api.http.get("/fleet/nodes/pc-2", headers=HEADERS).json()
    assert "not answered within 0.1 s" in answer["problem"]
    assert fleet.examined.cancelled()


def test_without_a_fleet_each_address_says_so(start_api: StartApi) -> None:
    api = start_api(script)
    for method, path in (("GET", "plan"), ("POST", "apply"), ("POST", "refuse"), ("GET", "nodes/pc-2")):
        answer = api.http.request(method, f"/fleet/{path}", json={})
        assert answer.status_code == 404 and "--local-stages" in answer.json()["error"]["message"]


def test_many_plans_at_once_do_not_hold_up_the_others(api: Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = threading.Semaphore(0), threading.Event()

    def plan(_: dict[str, Any]) -> dict[str, Any]:
        under_way.release()
        assert most.wait(30)
        return {"plan": {}}

    monkeypatch.setattr(fleet, "plan", plan)
    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(api.http.get, "/fleet/plan", headers=HEADERS) for _ in range(40)]
        assert under_way.acquire(timeout=30)
        try:
            assert api.http.get("/healthz").status_code == 200
            assert not under_way.acquire(blocking=False)  # one after the other
        finally:
            most.set()
        assert all(answer.result().status_code == 200 for answer in asked)
