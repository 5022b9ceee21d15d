"""Who is let in by the head, who is shown out, and who takes whose place."""

from __future__ import annotations

import json

from control_fleet import HOST, PATIENCE, ControlFleet, answer, ask, hello

from agent.fleet.control import versions
from agent.fleet.control.control_client import Entered, Out, Waiting
from agent.fleet.control.control_server import NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import PROTOCOL, CloseStage, Goodbye, Refused, TaskFailed, Welcome, encode
from pipeline.link import KeyPair


def test_to_those_who_are_not_in_nothing_is_said(fleet: ControlFleet) -> None:
    assert fleet.server
    fleet.server.tell(KeyPair.new().public, CloseStage(stage="s"))
    fleet.server.drop(KeyPair.new().public, "why not")
    stranger, heard = fleet.node(KeyPair.new())
    stranger.tell(TaskFailed(task="t", what="too early"))
    heard.wait_for(Waiting)
    _, friend = fleet.node()
    friend.wait_for(Entered)
    assert fleet.events.of(NodeSaid) == []


def test_approval_takes_effect_while_a_node_waits(fleet: ControlFleet) -> None:
    keys = KeyPair.new()
    _, heard = fleet.node(keys)
    assert heard.wait_for(Waiting).for_approval
    fleet.knocked.wait_for(tuple, 3)
    assert set(fleet.knocked) == {(keys.public, HOST)}
    assert fleet.events == []
    fleet.members.add(keys.public)
    heard.wait_for(Entered)
    assert len(heard) == 2  # it was told once that it waits


def test_a_node_that_is_dropped_gives_up(fleet: ControlFleet) -> None:
    assert fleet.server
    keys = fleet.new_member()
    _, heard = fleet.node(keys)
    heard.wait_for(Entered)
    fleet.server.drop(keys.public, "it was forgotten", "Ask for it.")
    assert heard.wait_for(Out).refused == Refused(what="it was forgotten", hint="Ask for it.")
    assert fleet.events.wait_for(NodeLeft) == NodeLeft(keys.public, "it was forgotten")


def test_a_node_whose_key_is_forgotten_is_out_at_its_next_word(fleet: ControlFleet) -> None:
    keys = fleet.new_member()
    node, heard = fleet.node(keys)
    heard.wait_for(Entered)
    fleet.members.remove(keys.public)
    node.tell(TaskFailed(task="t", what="still here"))
    heard.wait_for(Out)
    assert fleet.events.wait_for(NodeLeft).key == keys.public
    assert TaskFailed(task="t", what="still here") not in [said.message for said in fleet.events.of(NodeSaid)]


def test_what_a_forgotten_key_says_on_its_open_connection_is_not_heeded(fleet: ControlFleet) -> None:
    keys = fleet.new_member()
    socket = fleet.raw(keys)
    assert isinstance(ask(socket, hello()), Welcome)
    fleet.members.remove(keys.public)
    assert isinstance(ask(socket, TaskFailed(task="t", what="still here")), Refused)
    fleet.events.wait_for(NodeLeft)
    socket.send(encode(hello()))
    _, friend = fleet.node()
    friend.wait_for(Entered)
    assert [type(event) for event in fleet.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]


def test_joining_twenty_times_in_a_row_leaves_one(fleet: ControlFleet) -> None:
    keys = fleet.new_member()
    _, other = fleet.node(make_hello=lambda: hello("lamp", "0"))
    other.wait_for(Entered)
    for i in range(20):
        node, heard = fleet.node(keys, lambda i=i: hello(instance=f"run {i}"))
        heard.wait_for(Entered)
        assert [event.welcome.name for event in heard.of(Entered)] == ["desk"]
        if i < 19:
            node.close()
    fleet.events.wait_for(NodeJoined, 21)
    life = [type(event) for event in fleet.events if event.key == keys.public and not isinstance(event, NodeSaid)]
    assert life == [NodeJoined, NodeLeft] * 19 + [NodeJoined]


def test_a_restart_after_a_crash_is_in_at_once(fleet: ControlFleet) -> None:
    keys = fleet.new_member()
    for i in range(20):
        socket = fleet.raw(keys)
        assert ask(socket, hello(instance=f"run {i}")) == Welcome(fleet="home", name="desk")
        socket.close()
    fleet.events.wait_for(NodeLeft, 20)
    assert [type(event) for event in fleet.events] == [NodeJoined, NodeLeft] * 20


def test_a_restart_takes_the_place_of_one_that_does_not_answer(empty: ControlFleet) -> None:
    empty.start(heartbeat=1.5)  # the second has two to show that it is alive
    keys = empty.new_member()
    frozen = empty.raw(keys)
    ask(frozen, hello())
    _, heard = empty.node(keys, lambda: hello(instance="2"), lost=PATIENCE)
    assert heard.wait_for(Entered).welcome.name == "desk"
    assert [type(event) for event in empty.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]
    # should the first wake up, the second stays
    assert isinstance(ask(frozen, hello()), Goodbye)
    refused = answer(frozen)
    assert isinstance(refused, Refused)
    assert "desk at 127.0.0.1" in refused.what
    assert len(heard) == 1


def test_a_cloned_identity_is_refused_by_name(empty: ControlFleet) -> None:
    empty.start(heartbeat=10.0, lost=PATIENCE)  # the first has two to show that it is alive
    keys = empty.new_member()
    _, first = empty.node(keys, lost=PATIENCE)
    first.wait_for(Entered)
    _, clone = empty.node(keys, lambda: hello("clone", "2"), lost=PATIENCE)
    refused = clone.wait_for(Out).refused
    assert "desk at 127.0.0.1" in refused.what
    assert "node.json" in str(refused.hint)
    assert len(first) == len(clone) == len(empty.events.of(NodeJoined)) == 1
    assert empty.events.of(NodeLeft) == []


def test_another_protocol_is_refused_naming_both_versions(fleet: ControlFleet) -> None:
    theirs = json.loads(encode(hello())) | {"new field": 1}
    theirs["versions"] |= {"edge_agent": "9.8.7", "protocol": PROTOCOL + 1}
    refused = ask(fleet.raw(), json.dumps(theirs).encode())
    assert isinstance(refused, Refused)
    assert refused.final
    for name in ("9.8.7", f"protocol {PROTOCOL + 1}", versions.own().edge_agent, f"protocol {PROTOCOL}"):
        assert name in refused.what
    assert fleet.events == []


def test_another_version_of_the_same_protocol_is_welcome(fleet: ControlFleet) -> None:
    other = versions.own().model_copy(update={"edge_agent": "9.8.7"})
    assert isinstance(ask(fleet.raw(), hello().model_copy(update={"versions": other})), Welcome)
