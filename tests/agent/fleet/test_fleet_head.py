"""The head's side of a fleet with nodes of this process, on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from math import inf, nan
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from scripted_head import HARDWARE, HOST, PATIENCE

from agent import paths
from agent.fleet.bulk.library import Library
from agent.fleet.control.messages import Hardware, LinkMeasure
from agent.fleet.discovery.heads import find_heads
from agent.fleet.head import fleet_head
from agent.fleet.head.fleet_head import FleetHead
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.head.node_record import Work
from agent.fleet.node.node import Node, NodeSettings
from agent.fleet.trust.identity import NodeIdentity
from agent.fleet.trust.members import code_of
from pipeline.link import KeyPair
from shards.errors import RequestError

pytestmark = pytest.mark.usefixtures("nothing_stays")
OPTIONS = FleetOptions(port=0, interface=HOST, announced=False, node=NodeSettings(name="head"))
URL = "http://127.0.0.1:1"


def found() -> Future[Hardware]:
    hardware: Future[Hardware] = Future()
    hardware.set_result(HARDWARE)
    return hardware


@pytest.fixture
def fleet(tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetHead]:
    monkeypatch.setattr(paths, "cache_folder", lambda: tmp_path / "cache")
    with FleetHead(tiny_package, OPTIONS, folder=tmp_path / "config", url=URL) as head:
        wait(lambda: len(head.nodes()) == 1)
        head.orders.measure_links(head.nodes()[0].key, []).result(PATIENCE)  # by then all has been told that it came
        yield head


def wait(reached: Callable[[], object]) -> None:
    end = monotonic() + PATIENCE
    while not reached():
        assert monotonic() < end
        sleep(0.01)


def start(fleet: FleetHead, folder: Path, name: str, keys: KeyPair) -> Node:
    return Node(
        NodeSettings(),
        NodeIdentity(name=name, keys=keys),
        fleet.identity.keys.public,
        (HOST,),
        fleet.port,
        Library(folder / name),
        interface=HOST,
        found=found(),
        cache=folder / "tuning",
    )


def join(fleet: FleetHead, folder: Path, name: str, keys: KeyPair | None = None) -> Node:
    """A node that is let in by its code, if it has to be."""
    keys = keys or KeyPair.new()
    node = start(fleet, folder, name, keys)
    if not fleet._members.is_member(keys.public):
        wait(lambda: any(waiting.key == keys.public for waiting in fleet._pending.waiting))
        fleet.approve(code_of(fleet.identity.keys.public, keys.public))
    wait(lambda: any(record.key == keys.public for record in fleet.nodes()))
    return node


def names(fleet: FleetHead) -> list[str]:
    return sorted(record.name for record in fleet.nodes())


def test_a_node_that_comes_again_is_tried_anew_by_those_that_could_not_reach_it(
    fleet: FleetHead, tmp_path: Path
) -> None:
    keys, third = KeyPair.new(), "t" * 40
    (local,) = fleet.nodes()
    with join(fleet, tmp_path, "desk", keys):
        measure = LinkMeasure(peer=third, latency_ms=1.0, bytes_per_second=1e8)
        local.links = {third: measure}
        local.unreachable = {keys.public, third}
    wait(lambda: names(fleet) == ["head"])
    assert local.unreachable == {third}
    local.unreachable = {keys.public, third}  # measured while it went
    local.links = {third: measure, keys.public: measure.model_copy(update={"peer": keys.public})}
    with join(fleet, tmp_path, "desk", keys):
        assert (local.unreachable, set(local.links)) == ({third}, {third})


def test_a_node_that_is_refused_is_listed_no_more_and_can_be_let_in_all_the_same(
    fleet: FleetHead, tmp_path: Path
) -> None:
    keys = KeyPair.new()
    code = code_of(fleet.identity.keys.public, keys.public)
    with start(fleet, tmp_path, "desk", keys):
        wait(lambda: fleet.describe()["pending"])
        assert fleet.refuse(code) == code  # it announces no name
        assert fleet.describe()["pending"] == []
        assert any("was not let in" in event["what"] for event in fleet.describe()["events"])
        with pytest.raises(RequestError, match="no node waits"):
            fleet.refuse("AAAA-AAAA")
        fleet.approve(code)
        wait(lambda: len(fleet.nodes()) == 2)


def test_a_node_is_found_by_its_name_or_key(fleet: FleetHead) -> None:
    (local,) = fleet.nodes()
    assert fleet.find("head") is local and fleet.find(local.key) is local
    with pytest.raises(RequestError, match=r"'pc-9'.*There are: head"):
        fleet.find("pc-9")


def test_a_node_tells_how_it_does_and_what(fleet: FleetHead) -> None:
    (local,) = fleet.nodes()
    assert local.describe()["work"] is None
    local.work = Work.told("fetching", 1.0, 4.0)
    told: dict[str, Any] = fleet.describe()["nodes"][0]
    assert told["work"] == {"what": "fetching", "done": 1.0, "total": 4.0}
    assert {"temperature", "load"} <= told["condition"].keys() and told["is_head"]
    wait(lambda: local.condition.load is not None)  # with a heartbeat, once there is something to compare with


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(1, 2, (1, 2)), (0, 0, (0, 0)), (3, 2, (0, 0)), (-1, 2, (0, 0)), (nan, 1, (0, 0)), (1, inf, (0, 0))],
)
def test_what_a_node_says_of_its_work_is_bounded(done: float, total: float, shown: tuple[float, float]) -> None:
    work = Work.told("x" * 1000, done, total)
    assert (work.done, work.total) == shown and len(work.what) == 200


def test_this_users_programs_find_the_head_while_it_runs(fleet: FleetHead, tmp_path: Path) -> None:
    (found,) = find_heads(0, tmp_path / "config")
    assert (found.name, found.fleet) == (fleet.identity.name, fleet.identity.keys.public)
    assert found.urls == (URL,)


class HeardDiscovery:
    """Keeps what is announced."""

    announced: Any

    def __init__(self, announcement: Any, _: object) -> None:
        HeardDiscovery.announced = announcement

    def close(self) -> None:
        pass


@pytest.mark.parametrize("port", [None, 8114])
def test_the_api_is_announced_where_others_can_reach_it(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int | None
) -> None:
    monkeypatch.setattr(paths, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(fleet_head, "Discovery", HeardDiscovery)
    options = OPTIONS.model_copy(update={"announced": True})
    with FleetHead(tiny_package, options, folder=tmp_path / "config", api_port=port):
        assert HeardDiscovery.announced.api == port


def test_what_other_pcs_say_at_length_is_cut(fleet: FleetHead) -> None:
    (local,) = fleet.nodes()
    fleet.leave_out(local, "x" * 10**6)
    told = fleet.describe()
    assert told["nodes"][0]["problem"].count("x") == len(told["events"][-1]["what"]) == 1000


def test_what_fails_because_a_node_has_left_is_not_held_against_it(fleet: FleetHead, tmp_path: Path) -> None:
    keys = KeyPair.new()
    with join(fleet, tmp_path, "desk", keys):
        gone = fleet.find(keys.public)
    wait(lambda: names(fleet) == ["head"])
    wait(lambda: "has left" in fleet.events.describe()[-1]["what"])  # a moment after it is listed no more
    before = fleet.events.describe()
    fleet.leave_out(gone, "the node is gone")
    assert gone.setback is None and fleet.events.describe() == before


def test_a_node_that_is_left_out_is_a_change(fleet: FleetHead) -> None:
    changes: list[None] = []
    fleet.on_change(lambda: changes.append(None))
    (local,) = fleet.nodes()
    fleet.leave_out(local, f"{local.name}: the process was killed")
    assert len(changes) == 1
    assert "not planned with for 30 s: the process was killed" in fleet.events.describe()[-1]["what"]
    fleet.leave_out(local, "it has no GPU", final=True)
    assert "until it joins again: it has no GPU" in fleet.events.describe()[-1]["what"]
