"""Head and nodes over real sockets: what they say is heard, and all of it."""

from __future__ import annotations

import pytest
from control_fleet import CONDITION, HOST, ControlFleet, hello

from agent.fleet.control.control_client import ClientEvent, Entered, Lost, Told, Waiting
from agent.fleet.control.control_server import ControlServer, NodeEvent, NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import CloseStage, Heartbeat, Hello, MeasureLinks, TaskFailed, TaskProgress, Welcome
from shards.errors import ConfigurationError


def test_a_node_joins_talks_and_leaves(fleet: ControlFleet) -> None:
    assert fleet.server
    keys = fleet.new_member()
    node, heard = fleet.node(keys)
    assert heard.wait_for(Entered).welcome == Welcome(fleet="home", name="desk")
    assert fleet.events.wait_for(NodeJoined) == NodeJoined(keys.public, "desk", hello(), HOST)
    orders = [MeasureLinks(task=str(i), peers=()) for i in range(500)]
    reports = [TaskProgress(task="t", what="it", done=i, total=500) for i in range(500)]
    for order, report in zip(orders, reports, strict=True):
        fleet.server.tell(keys.public, order)
        node.tell(report)
    heard.wait_for(Told, 500)
    assert [told.message for told in heard.of(Told)] == orders
    beat = Heartbeat(condition=CONDITION)
    fleet.events.wait(lambda events: NodeSaid(keys.public, beat) in events)
    fleet.events.wait(lambda events: len([e for e in events.of(NodeSaid) if e.message != beat]) >= 500)
    assert [said.message for said in fleet.events.of(NodeSaid) if said.message != beat] == reports
    node.close()
    assert fleet.events.wait_for(NodeLeft) == NodeLeft(keys.public, "its agent was ended")
    assert fleet.events[0] == NodeJoined(keys.public, "desk", hello(), HOST)
    assert not heard.of(Lost)


def test_the_address_of_a_node_is_plain_where_the_head_hears_ipv6_too(empty: ControlFleet) -> None:
    empty.start(host="*")
    _, heard = empty.node()
    heard.wait_for(Entered)
    assert empty.events.wait_for(NodeJoined).address == HOST
    assert {address for _, address in empty.knocked} == {HOST}


def test_what_is_told_just_before_the_end_is_heard(fleet: ControlFleet) -> None:
    node, heard = fleet.node()
    heard.wait_for(Entered)
    node.tell(TaskFailed(task="t", what="the last"))
    node.close()
    assert fleet.events.wait_for(NodeSaid).message == TaskFailed(task="t", what="the last")
    fleet.events.wait_for(NodeLeft)


def test_sixteen_nodes_at_once(fleet: ControlFleet) -> None:
    nodes = [fleet.node(make_hello=lambda i=i: hello(instance=f"run {i}")) for i in range(16)]
    names = {heard.wait_for(Entered).welcome.name for _, heard in nodes}
    assert names == {"desk", *(f"desk-{i}" for i in range(2, 17))}
    for node, _ in nodes:
        node.close()
    fleet.events.wait_for(NodeLeft, 16)
    for key in fleet.members:
        life = [type(event) for event in fleet.events if event.key == key and not isinstance(event, NodeSaid)]
        assert life == [NodeJoined, NodeLeft]


def test_closing_the_head_tells_all(fleet: ControlFleet) -> None:
    nodes = [fleet.node() for _ in range(3)]
    for _, heard in nodes:
        heard.wait_for(Entered)
    assert fleet.server
    fleet.server.close()
    assert len(fleet.events.of(NodeLeft)) == 3
    for _, heard in nodes:
        assert heard.wait_for(Lost).why == "the head is closing"
    fleet.server.tell("x" * 40, CloseStage(stage="s"))  # goes nowhere
    fleet.server.close()


def test_a_defect_in_a_callback_ends_nothing(empty: ControlFleet, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: NodeEvent | ClientEvent) -> None:
        raise ValueError("a defect")

    calls = iter([ValueError("a defect"), hello()])

    def make_hello() -> Hello:
        if isinstance(made := next(calls), Exception):
            raise made
        return made

    joined = empty.events
    server = ControlServer(
        empty.keys, lambda *_: True, lambda _: True, "home", lambda e: (joined.add(e), fail(e)), host=HOST
    )
    empty.server, empty.port = server, server.port
    _, heard = empty.node(make_hello=make_hello)
    assert "a defect" in heard.wait_for(Waiting).why
    heard.wait_for(Entered)
    joined.wait_for(NodeJoined)
    assert "defect of edge-agent" in caplog.text


def test_a_port_that_is_taken_is_said_and_leaves_nothing_behind(fleet: ControlFleet) -> None:
    with pytest.raises(ConfigurationError, match=str(fleet.port)):
        ControlServer(fleet.keys, lambda *_: True, lambda _: True, "home", print, host=HOST, port=fleet.port)
