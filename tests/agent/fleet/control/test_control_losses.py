"""Heads and nodes that are silent, gone, or not whom one looks for."""

from __future__ import annotations

import pytest
import zmq
from control_fleet import CONDITION, HEARTBEAT, HOST, ControlFleet, Events, answer, ask, hello

from agent.fleet.control.control_client import ControlClient, Entered, Lost, Waiting
from agent.fleet.control.control_server import NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import MAX_BYTES, Goodbye, Heartbeat, Welcome, encode
from agent.fleet.trust.sockets import listen
from pipeline.doorman import Doorman
from pipeline.link import KeyPair, port_of


def test_one_whose_connection_broke_without_a_word_has_left(fleet: ControlFleet) -> None:
    socket = fleet.raw()
    assert isinstance(ask(socket, hello()), Welcome)
    socket.close()
    assert "broke" in fleet.events.wait_for(NodeLeft).why


def test_one_that_is_silent_is_lost(empty: ControlFleet) -> None:
    empty.start(lost=0.5)
    keys = empty.new_member()
    socket = empty.raw(keys)
    assert isinstance(ask(socket, hello()), Welcome)
    assert "0.5 seconds" in empty.events.wait_for(NodeLeft).why
    assert isinstance(answer(socket), Goodbye)
    # coming back needs another Hello
    socket.send(encode(Heartbeat(condition=CONDITION)))
    assert isinstance(ask(socket, hello()), Welcome)
    assert [type(event) for event in empty.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]


def test_a_silent_head_is_lost_and_found_again(empty: ControlFleet) -> None:
    empty.start()
    _, heard = empty.node(lost=10.0)
    heard.wait_for(Entered)
    assert empty.server
    empty.server.close()
    assert heard.wait_for(Lost).why == "the head is closing"
    waiting = heard.wait_for(Waiting)
    assert not waiting.for_approval
    assert str(empty.port) in waiting.why
    empty.start()
    assert heard.wait_for(Entered, 2)
    life = [type(event) for event in empty.events if not isinstance(event, NodeSaid)]  # its condition may have come
    assert life == [NodeJoined, NodeLeft, NodeJoined]


@pytest.mark.parametrize("answers", [True, False])
def test_a_head_that_is_silent_is_not_waited_for(empty: ControlFleet, answers: bool) -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    everybody = Doorman(context).guard(lambda *_: True)
    head = listen(context, zmq.ROUTER, empty.keys, domain=everybody, max_bytes=MAX_BYTES, host=HOST)
    empty.port = port_of(head)
    _, heard = empty.node(lost=0.5)
    route, _ = head.recv_multipart()
    if answers:
        head.send_multipart([route, encode(Welcome(fleet="home", name="desk"))])
        heard.wait_for(Entered)
    assert "0.5 seconds" in heard.wait_for(Lost if answers else Waiting).why
    head.close()
    context.term()


def test_the_head_of_another_fleet_is_not_talked_to(fleet: ControlFleet) -> None:
    other = ControlFleet()
    other.port = fleet.port
    _, heard = other.node(fleet.new_member())
    assert "not the head of this fleet" in heard.wait_for(Waiting).why
    other.close()
    assert fleet.events == []


def test_an_address_that_is_none_is_only_waited_for(empty: ControlFleet) -> None:
    events = Events()
    node = ControlClient(
        KeyPair.new(), empty.keys.public, "no address", 1, hello, lambda: CONDITION, events.add, heartbeat=HEARTBEAT
    )
    empty.clients.append(node)
    assert "no address:1" in events.wait_for(Waiting).why
