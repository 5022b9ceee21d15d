from __future__ import annotations

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.trust import members as members_module
from agent.fleet.trust import stored
from agent.fleet.trust.members import MOST_MEMBERS, Members, code_of, raw_key
from pipeline.link import KeyPair
from shards.errors import ConfigurationError, RequestError

FLEET = KeyPair.new().public


def new_key() -> str:
    return KeyPair.new().public


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path, FLEET)


def again(tmp_path: Path) -> Members:
    return Members(tmp_path, FLEET)


def test_members_come_in_and_are_remembered(members: Members, tmp_path: Path) -> None:
    key = new_key()
    assert not members.is_member(key)
    member = members.add(key, "pc")
    assert (member.key, member.name) == (key, "pc")
    for known in (members, again(tmp_path)):
        assert known.is_member(key)
        assert known.members == (member,)
        assert known.name_of(key) == "pc"
        assert known.name_of(new_key()) is None
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "members.json").stat().st_mode) == 0o600


def test_names_are_unique(members: Members) -> None:
    assert [members.add(new_key(), name).name for name in ("pc", "pc", "PC", "lab", "pc-2")] == [
        "pc",
        "pc-2",
        "PC-3",
        "lab",
        "pc-2-2",
    ]


def test_names_stay_short_with_their_suffix(members: Members) -> None:
    names = [members.add(new_key(), "ü" * 60).name for _ in range(3)]
    assert len(set(names)) == 3
    assert all(len(name.encode()) <= 63 for name in names)


def test_a_member_that_comes_again_keeps_its_name(members: Members) -> None:
    first, second = new_key(), new_key()
    members.add(first, "pc")
    member = members.add(second, "pc")
    assert member.name == "pc-2"
    assert members.add(second, "pc") == member
    assert members.add(first, "pc").name == "pc"
    assert len(members.members) == 2


def test_a_member_can_be_renamed(members: Members) -> None:
    key = new_key()
    old = members.add(key, "pc")
    new = members.add(key, "annas-pc")
    assert (new.name, new.since) == ("annas-pc", old.since)
    assert members.members == (new,)


def test_names_are_cleaned(members: Members) -> None:
    assert members.add(new_key(), "[red]\x1b[0m pc").name == "red---0m-pc"


@pytest.mark.parametrize("by", ["name", "key", "code", "typed code"])
def test_a_forgotten_member_is_out_for_good(members: Members, tmp_path: Path, by: str) -> None:
    key, other = new_key(), new_key()
    members.add(key, "pc")
    members.add(other, "lab")
    code = code_of(FLEET, key)
    who = {"name": "pc", "key": key, "code": code, "typed code": f" {code.lower().replace('-', '')} "}[by]
    assert members.forget(who).key == key
    for known in (members, again(tmp_path)):
        assert not known.is_member(key)
        assert known.is_forgotten(key)
        assert known.is_member(other)


def test_a_forgotten_member_can_be_let_in_again(members: Members, tmp_path: Path) -> None:
    key = new_key()
    members.add(key, "pc")
    members.forget("pc")
    members.add(key, "pc")
    assert again(tmp_path).is_member(key)
    assert not again(tmp_path).is_forgotten(key)


def test_who_is_not_a_member_cannot_be_forgotten(members: Members) -> None:
    with pytest.raises(RequestError, match="no members"):
        members.forget("pc")
    members.add(new_key(), "lab")
    with pytest.raises(RequestError, match=r"'pc'.*There are: lab"):
        members.forget("pc")


def test_a_name_that_is_the_code_of_another_forgets_nobody(members: Members) -> None:
    key = new_key()
    members.add(key, "pc")
    members.add(new_key(), code_of(FLEET, key))
    with pytest.raises(RequestError, match="several members"):
        members.forget(code_of(FLEET, key))
    assert len(members.members) == 2


def test_a_fleet_is_full_at_some_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "MOST_MEMBERS", 3)
    members = Members(tmp_path, FLEET)
    keys = [new_key() for _ in range(3)]
    for key in keys:
        members.add(key, "pc")
    with pytest.raises(RequestError, match="3 members"):
        members.add(new_key(), "pc")
    assert members.add(keys[0], "pc").key == keys[0]
    for _ in range(5):  # and so is what it remembers of those that were shut out
        members.forget(members.members[0].key)
        members.add(new_key(), "pc")
    stored_ = json.loads((tmp_path / "members.json").read_text("utf-8"))
    assert (len(stored_["members"]), len(stored_["forgotten"])) == (3, 3)
    assert MOST_MEMBERS >= 100


def test_what_cannot_be_stored_does_not_happen(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    members.add(key, "pc")

    def full(*_: object) -> None:
        raise ConfigurationError("the disk is full")

    monkeypatch.setattr(stored, "write", full)
    with pytest.raises(ConfigurationError):
        members.add(new_key(), "lab")
    with pytest.raises(ConfigurationError):
        members.forget("pc")
    assert [member.key for member in members.members] == [key]
    assert members.is_member(key)
    assert not members.is_forgotten(key)


def test_a_damaged_file_is_named_and_left_alone(members: Members, tmp_path: Path) -> None:
    members.add(new_key(), "pc")
    path = tmp_path / "members.json"
    for bad in ("{", path.read_text("utf-8").replace(members.members[0].key, "~" * 40)):
        path.write_text(bad, "utf-8")
        with pytest.raises(ConfigurationError, match=r"members\.json"):
            again(tmp_path)
        assert path.read_text("utf-8") == bad


def test_threads_do_not_lose_each_others_members(members: Members, tmp_path: Path) -> None:
    keys = [new_key() for _ in range(40)]
    threads = [
        threading.Thread(target=lambda part=part: [members.add(key, "pc") for key in part])  # type: ignore[misc]
        for part in (keys[:20], keys[20:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {member.key for member in again(tmp_path).members} == set(keys)
    assert len({member.name for member in members.members}) == 40


def test_members_are_described_as_json(members: Members) -> None:
    key = new_key()
    members.add(key, "pc")
    (described,) = json.loads(json.dumps(members.describe()))
    assert (described["key"], described["name"], described["code"]) == (key, "pc", code_of(FLEET, key))
    assert described["since"].endswith("Z")


def test_codes_are_of_both_keys() -> None:
    node, other = new_key(), new_key()
    code = code_of(FLEET, node)
    assert re.fullmatch("[A-Z2-7]{4}-[A-Z2-7]{4}", code)
    assert code_of(FLEET, node) == code
    assert len({code, code_of(FLEET, other), code_of(other, node), code_of(node, FLEET)}) == 4


def test_codes_do_not_change_with_versions() -> None:
    assert code_of("0" * 40, "a" * 40) == "5CX3-RY6S"


@given(st.text() | st.text(alphabet="0aA#~\t\xff", min_size=40, max_size=40))
def test_what_is_no_key_has_no_code(text: str) -> None:
    try:
        assert len(raw_key(text)) == 32
    except ValueError:
        with pytest.raises(ValueError, match="no key"):
            code_of(FLEET, text)
