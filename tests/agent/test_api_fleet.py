"""Looking after a fleet over HTTP; the fleet is a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_head import Api, StartApi

from pipeline.messages import RequestEvent
from shards.errors import CapacityError, RequestError

KEY = "the owner's key"
HEADERS = {"Authorization": f"Bearer {KEY}"}


class Fleet:
    """A FleetControl that knows one node that waits, and one that is in."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def describe(self) -> dict[str, Any]:
        return {"fleet": {"name": "home"}, "nodes": [], "pending": [{"code": "ABCD-EFGH"}], "events": []}

    def approve(self, code: str) -> str:
        if code != "ABCD-EFGH":
            raise RequestError(f"no node waits with code {code!r}", where="code")
        return "pc-2"

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


@pytest.mark.parametrize("path, body", [("approve", {"code": "WXYZ-WXYZ"}), ("forget", {"node": "pc-9"})])
def test_an_unknown_one_is_named(api: Api, path: str, body: dict[str, str]) -> None:
    answer = api.http.post(f"/fleet/{path}", json=body, headers=HEADERS)
    assert answer.status_code == 400 and next(iter(body.values())) in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}])
def test_nobody_looks_after_the_fleet_without_the_owners_key(api: Api, fleet: Fleet, headers: dict[str, str]) -> None:
    for method, path, body in (("POST", "approve", {"code": "ABCD-EFGH"}), ("POST", "forget", {"node": "pc-2"})):
        assert api.http.request(method, f"/fleet/{path}", json=body, headers=headers).status_code == 401
    assert api.http.get("/fleet/plan", headers=headers).status_code == 401
    assert api.http.post("/fleet/renew-token", json={}, headers=headers).status_code == 401
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
