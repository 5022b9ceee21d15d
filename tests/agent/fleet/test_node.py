"""A node and its head over real sockets, on loopback."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest
from scripted_head import HOST, PATIENCE, ScriptedHead, Statuses, ref, start_node

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.fetch import fetch_manifest
from agent.fleet.control.messages import Traffic
from agent.fleet.trust.members import code_of
from pipeline.link import KeyPair
from shards.errors import PackageError

pytestmark = pytest.mark.usefixtures("nothing_stays")


def test_a_node_presents_itself_and_gets_a_name(head: ScriptedHead, tmp_path: Path) -> None:
    first, second = Statuses(), Statuses()
    with (
        start_node(head, tmp_path / "1", observe=first.add, memory=2**20) as one,
        start_node(head, tmp_path / "2", observe=second.add) as two,
    ):
        head.wait(2)
        names = {first.wait(lambda s: s.state == "joined").name, second.wait(lambda s: s.state == "joined").name}
        assert names == {"desk", "desk-2"}
        assert (first[-1].fleet, first[-1].head) == ("home", f"{HOST}:{head.port}")
        hello = head.nodes[one.key].hello
        assert hello.bulk_port == one.bulk_port
        assert hello.condition.memory_allowed == 2**20
        assert hello.instance != head.nodes[two.key].hello.instance
    head.wait(0)


def test_a_stranger_waits_and_shows_its_code_until_it_is_let_in(tmp_path: Path) -> None:
    keys, statuses, members = KeyPair.new(), Statuses(), set[str]()
    with ScriptedHead(members.__contains__) as head, start_node(head, tmp_path, keys=keys, observe=statuses.add):
        waiting = statuses.wait(lambda status: status.state == "waiting")
        assert waiting.code == code_of(head.keys.public, keys.public)
        members.add(keys.public)
        joined = statuses.wait(lambda status: status.state == "joined")
        assert (joined.code, joined.why) == (None, None)


def test_a_second_node_of_one_identity_is_out(tmp_path: Path) -> None:
    keys, statuses = KeyPair.new(), Statuses()
    patient = ScriptedHead(heartbeat=2.0)  # the first has two to show that it is alive
    with patient as head, start_node(head, tmp_path / "1", keys=keys):
        head.wait(1)
        with start_node(head, tmp_path / "2", "copy", keys=keys, observe=statuses.add):
            out = statuses.wait(lambda status: status.state == "out")
            assert "same identity" in (out.why or "")
            assert "node.json" in (out.hint or "")
        assert [node.name for node in head.nodes.values()] == ["desk"]


def test_a_node_comes_back_to_a_head_that_was_away(tmp_path: Path) -> None:
    keys, statuses = KeyPair.new(), Statuses()
    with ScriptedHead(keys=keys) as head:
        node = start_node(head, tmp_path, observe=statuses.add)
        head.wait(1)
    with node:
        statuses.wait(lambda status: status.state == "looking" and bool(status.why))
        with ScriptedHead(keys=keys, port=head.port) as again:
            again.wait(1)
        statuses.wait(lambda status: status.state == "looking")
        with ScriptedHead(keys=keys) as elsewhere:
            node.move(("127.0.0.9", HOST), elsewhere.port)
            elsewhere.wait(1)
            statuses.wait(lambda status: status.state == "joined")


def test_what_answers_where_the_head_was_is_not_the_head(tmp_path: Path) -> None:
    statuses = Statuses()
    with ScriptedHead() as other, ScriptedHead() as head:
        there = head.port
        head.port = other.port
        with start_node(head, tmp_path, observe=statuses.add) as node:
            assert "head of this fleet" in (statuses.wait(lambda status: status.why is not None).why or "")
            assert not other.nodes
            node.move((HOST,), there)
            head.wait(1)


def test_weights_are_for_the_fleet_alone(head: ScriptedHead, tmp_path: Path, tiny_package: Path) -> None:
    with start_node(head, tmp_path, lends=tiny_package) as node, start_node(head, tmp_path, "other") as other:
        head.wait(2)
        source = Source(node.key, "desk", HOST, node.bulk_port)
        model = ref(tiny_package, [node])
        assert fetch_manifest(model.package_id, [source], other._keys).package_id == model.package_id
        with pytest.raises(PackageError, match="desk"):
            fetch_manifest(model.package_id, [source], KeyPair.new(), stall_seconds=1.0)


def test_weights_are_held_back_while_tokens_flow(head: ScriptedHead, tmp_path: Path) -> None:
    with start_node(head, tmp_path) as node:
        head.wait(1)
        for busy in (True, False):
            head.server.tell(node.key, Traffic(busy=busy))
            ends = monotonic() + PATIENCE
            while (node._bulk.pace.busy, node._place.packages.pace.busy) != (busy, busy):
                assert monotonic() < ends


def test_a_node_that_never_finds_its_head_says_why_and_ends(tmp_path: Path) -> None:
    statuses = Statuses()
    with ScriptedHead() as gone:
        pass
    with start_node(gone, tmp_path, observe=statuses.add):
        assert "refused" in (statuses.wait(lambda status: status.why is not None).why or "")
