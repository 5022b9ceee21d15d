"""Members that send noise, send too much, or never read: they harm nobody else."""

from __future__ import annotations

import logging
import threading

import pytest
import zmq
from control_fleet import HEARTBEAT, ControlFleet, ask, hello

from agent.fleet.control.control_client import Entered, Told
from agent.fleet.control.control_server import NodeLeft, NodeSaid
from agent.fleet.control.messages import Directory, Heartbeat, MeasureLinks, TaskFailed, TaskProgress, Welcome, encode


@pytest.mark.parametrize(
    "noise", [b"", b"\xff" * 100, b"{}", b'{"kind":"welcome","fleet":"a","name":"b"}', b"[" * 10_000]
)
def test_noise_of_a_member_drops_it_and_nobody_else(
    fleet: ControlFleet, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keys = fleet.new_member()
    socket = fleet.raw(keys)
    for _ in range(1000):
        socket.send(noise)  # nobody's yet
    _, heard = fleet.node()
    heard.wait_for(Entered)
    with caplog.at_level(logging.WARNING):
        assert isinstance(ask(socket, hello(name="noisy")), Welcome)
        for _ in range(1000):
            socket.send(noise)
        socket.send_multipart([noise, noise])
        fleet.events.wait_for(NodeLeft)
    assert [event.key for event in fleet.events.of(NodeLeft)] == [keys.public]
    assert len(heard) == 1
    assert len(caplog.records) < 10


def test_a_flood_is_dropped_and_the_others_are_heard(fleet: ControlFleet) -> None:
    other, heard = fleet.node()
    heard.wait_for(Entered)
    message = TaskProgress(task="t", what="it", done=1, total=1)
    socket = fleet.raw()
    assert isinstance(ask(socket, hello("flood")), Welcome)
    for _ in range(5000):
        socket.send(encode(message))
    other.tell(TaskFailed(task="mine", what="it"))
    fleet.events.wait(lambda events: any(isinstance(e, NodeSaid) and e.message.kind == "task-failed" for e in events))
    assert fleet.events.of(NodeLeft) == []


def test_one_that_never_reads_is_dropped_and_the_others_are_served(empty: ControlFleet) -> None:
    server = empty.start()
    keys, friends = empty.new_member(), empty.new_member()
    deaf = empty.raw(keys)
    assert isinstance(ask(deaf, hello("deaf")), Welcome)
    _, heard = empty.node(friends)
    heard.wait_for(Entered)
    large = MeasureLinks(task="x" * 2**14, peers=())
    stop = threading.Event()

    def keep_alive() -> None:
        while not stop.wait(HEARTBEAT):
            deaf.send(encode(Heartbeat()), zmq.NOBLOCK)

    alive = threading.Thread(target=keep_alive)
    alive.start()
    for _ in range(4000):
        server.tell(keys.public, large)
    left = empty.events.wait_for(NodeLeft)
    stop.set()
    alive.join()
    assert left == NodeLeft(keys.public, "it does not read what it is sent")
    server.tell(friends.public, Directory(nodes=()))
    heard.wait_for(Told)
