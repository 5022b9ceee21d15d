from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from agent.fleet.trust import pending as pending_module
from agent.fleet.trust.members import Members, code_of
from agent.fleet.trust.pending import EXPIRY_SECONDS, IDLE_SECONDS, MOST_AT_ADDRESS, MOST_WAITING, Pending, Waiting
from pipeline.link import KeyPair
from shards.errors import RequestError

FLEET = KeyPair.new().public
KNOCK_SECONDS = 2.0
"""How often a node that waits knocks."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path, FLEET)


@pytest.fixture
def pending(members: Members, clock: Clock) -> Pending:
    return Pending(members, clock)


def new_key() -> str:
    return KeyPair.new().public


def keys_of(pending: Pending) -> list[str]:
    return [node.key for node in pending.waiting]


def test_an_unknown_node_waits_with_its_code(pending: Pending, clock: Clock) -> None:
    key = new_key()
    assert not pending.check(key, "10.0.0.2")
    clock.now += 5
    assert not pending.check(key, "10.0.0.3")
    clock.now += 1
    (node,) = pending.waiting
    assert (node.key, node.code, node.address) == (key, code_of(FLEET, key), "10.0.0.3")
    assert (node.waiting_seconds, node.idle_seconds) == (6, 1)
    assert node.name is None
    assert not node.is_forgotten


def test_members_do_not_wait(pending: Pending, members: Members) -> None:
    key = new_key()
    members.add(key, "pc")
    assert pending.check(key, "10.0.0.2")
    assert pending.waiting == ()


@pytest.mark.parametrize("change", [str, str.lower, lambda code: code.replace("-", " ")])
def test_who_is_approved_is_a_member_and_no_longer_waits(pending: Pending, members: Members, change: object) -> None:
    key = new_key()
    pending.check(key, "10.0.0.2")
    assert callable(change)
    assert pending.approve(change(code_of(FLEET, key))).key == key
    assert members.is_member(key)
    assert pending.check(key, "10.0.0.2")
    assert pending.waiting == ()


def test_a_node_is_called_what_it_announces(pending: Pending, members: Members) -> None:
    key = new_key()
    pending.name({key: "[red]annas-pc", new_key(): "lab"})
    pending.check(key, "10.0.0.2")
    assert [node.name for node in pending.waiting] == ["red-annas-pc"]
    assert pending.approve(code_of(FLEET, key)).name == "red-annas-pc"


def test_who_was_shut_out_waits_as_such(pending: Pending, members: Members) -> None:
    key = new_key()
    members.add(key, "pc")
    members.forget("pc")
    assert not pending.check(key, "10.0.0.2")
    assert [node.is_forgotten for node in pending.waiting] == [True]
    pending.approve(code_of(FLEET, key))
    assert pending.check(key, "10.0.0.2")


def test_a_code_nobody_waits_with_is_an_error_that_tells_who_waits(pending: Pending) -> None:
    with pytest.raises(RequestError, match="edge-agent join"):
        pending.approve("AAAA-AAAA")
    key = new_key()
    pending.check(key, "10.0.0.2")
    for code in ("AAAA-AAAA", "", code_of(FLEET, key)[:-1]):
        with pytest.raises(RequestError) as caught:
            pending.approve(code)
        assert f"{code_of(FLEET, key)} (a PC at 10.0.0.2)" in str(caught.value)


def test_a_code_that_two_have_lets_nobody_in(
    pending: Pending, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "code_of", lambda *_: "AAAA-AAAA")
    for address in ("10.0.0.2", "10.0.0.3"):
        pending.check(new_key(), address)
    with pytest.raises(RequestError, match=r"several.*10\.0\.0\.2.*10\.0\.0\.3"):
        pending.approve("AAAA-AAAA")
    assert members.members == ()


def test_who_stops_knocking_is_dropped(pending: Pending, clock: Clock) -> None:
    pending.check(new_key(), "10.0.0.2")
    clock.now += EXPIRY_SECONDS - 1
    assert len(pending.waiting) == 1
    clock.now += 1
    assert pending.waiting == ()


def test_a_flood_from_one_address_takes_few_places(pending: Pending, clock: Clock) -> None:
    for _ in range(500):
        pending.check(new_key(), "10.6.6.6")
        clock.now += 0.01
    assert len(pending.waiting) == MOST_AT_ADDRESS
    other = new_key()
    pending.check(other, "10.0.0.2")
    assert other in keys_of(pending)


@pytest.mark.parametrize("addresses", [1, 1000])
def test_a_flood_does_not_displace_who_goes_on_knocking(pending: Pending, clock: Clock, addresses: int) -> None:
    steady = new_key()
    for i in range(5000):  # of keys that knock once each, for 100 s
        if i % round(KNOCK_SECONDS / 0.02) == 0:
            pending.check(steady, "10.0.0.1")
        pending.check(f"{i:040}", f"10.0.{i % addresses // 250}.{i % addresses % 250 + 1}")
        clock.now += 0.02
        assert len(pending.waiting) <= MOST_WAITING
    assert keys_of(pending)[0] == steady
    assert pending.waiting[0].waiting_seconds >= 99


def test_a_newcomer_takes_the_place_of_who_has_stopped(pending: Pending, clock: Clock) -> None:
    old = [new_key() for _ in range(MOST_AT_ADDRESS)]
    for key in old:
        pending.check(key, "10.0.0.2")
        clock.now += 1
    newcomer = new_key()
    pending.check(newcomer, "10.0.0.2")
    assert keys_of(pending) == old
    clock.now += IDLE_SECONDS - 1
    pending.check(newcomer, "10.0.0.2")
    assert keys_of(pending) == [*old[1:], newcomer]


def test_an_unknown_node_is_logged_once(pending: Pending, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    key = new_key()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            pending.check(key, "10.0.0.2")
            clock.now += KNOCK_SECONDS
    (record,) = caplog.records
    assert "10.0.0.2" in record.message
    assert code_of(FLEET, key) in record.message


def test_a_flood_fills_no_log(
    pending: Pending, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "code_of", lambda *_: "AAAA-AAAA")
    with caplog.at_level(logging.WARNING):
        for i in range(36_000):
            pending.check(f"{i:040}", f"10.0.0.{i % 250}")
            clock.now += 0.1
    assert len(caplog.records) <= MOST_WAITING + 60  # an hour of it


def test_who_waits_is_described_as_json(pending: Pending) -> None:
    key = new_key()
    pending.check(key, "10.0.0.2")
    (described,) = json.loads(json.dumps(pending.describe()))
    assert (described["key"], described["address"]) == (key, "10.0.0.2")


def test_who_was_refused_is_not_listed_however_often_it_knocks(pending: Pending, members: Members) -> None:
    key, other = new_key(), new_key()
    pending.name({key: "annas-pc"})
    pending.check(key, "10.0.0.2")
    pending.check(other, "10.0.0.3")
    refused = pending.refuse(code_of(FLEET, key).lower())
    assert (refused.key, refused.name, refused.address) == (key, "annas-pc", "10.0.0.2")
    for _ in range(3):
        assert not pending.check(key, "10.0.0.2")
        assert keys_of(pending) == [other]
    assert pending.refuse(code_of(FLEET, key)).key == key  # twice does no harm
    assert not members.members


def test_who_was_refused_can_be_approved_after_all(pending: Pending, members: Members) -> None:
    key = new_key()
    pending.check(key, "10.0.0.2")
    pending.refuse(code_of(FLEET, key))
    assert pending.approve(code_of(FLEET, key)).key == key
    assert pending.check(key, "10.0.0.2")
    members.forget(key)
    pending.check(key, "10.0.0.2")
    assert keys_of(pending) == [key]  # that it was refused once is forgotten


def test_who_joined_by_a_token_was_refused_in_vain(pending: Pending, members: Members) -> None:
    key = new_key()
    pending.check(key, "10.0.0.2")
    pending.refuse(code_of(FLEET, key))
    members.add(key, "pc")
    assert pending.waiting == ()
    members.forget("pc")
    pending.check(key, "10.0.0.2")
    assert keys_of(pending) == [key]


def test_who_was_refused_takes_nobodys_place(pending: Pending) -> None:
    for _ in range(3 * MOST_AT_ADDRESS):
        key = new_key()
        pending.check(key, "10.0.0.2")
        assert keys_of(pending) == [key]
        pending.refuse(code_of(FLEET, key))


def test_so_many_refused_are_remembered_and_no_more(pending: Pending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "MOST_REFUSED", 3)
    keys = [new_key() for _ in range(4)]
    for key in keys:
        pending.check(key, "10.0.0.2")
        pending.refuse(code_of(FLEET, key))
    for key in keys:
        pending.check(key, "10.0.0.2")
    assert keys_of(pending) == keys[:1]


def test_nobody_is_refused_by_a_code_that_nobody_has(pending: Pending) -> None:
    key = new_key()
    pending.check(key, "10.0.0.2")
    with pytest.raises(RequestError, match="AAAA-AAAA"):
        pending.refuse("AAAA-AAAA")
    assert keys_of(pending) == [key]


def test_who_is_let_in_at_the_same_moment_is_not_refused(
    pending: Pending, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, find = new_key(), pending.find
    pending.check(key, "10.0.0.2")

    def find_and_approve(code: str) -> Waiting:
        found = find(code)
        members.add(key, "pc")
        return found

    monkeypatch.setattr(pending, "find", find_and_approve)
    with pytest.raises(RequestError, match="just been let in"):
        pending.refuse(code_of(FLEET, key))
    assert members.is_member(key)
