from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from zeroconf import ServiceInfo

from agent.fleet.control.messages import PROTOCOL
from agent.fleet.discovery.announcement import SERVICE, Announcement
from agent.fleet.trust.identity import clean_name
from pipeline.link import KeyPair
from shards.errors import WireError

KEY = "a" * 40


def text_of(properties: dict[str, str]) -> bytes:
    return ServiceInfo(SERVICE, f"any.{SERVICE}", properties=properties).text


def raw(*strings: bytes) -> bytes:
    return b"".join(bytes([len(string)]) + string for string in strings)


GOOD = {"key": KEY, "role": "head", "name": "desk", "protocol": "1", "version": "1.0", "addresses": "10.0.0.1,fd00::1"}

addresses = st.ip_addresses().filter(
    lambda address: not (address.is_loopback or address.is_multicast or address.is_unspecified)
)
ports = st.none() | st.integers(1, 65535)
announcements = st.builds(
    Announcement,
    key=st.builds(lambda: KeyPair.new().public),
    fleet=st.just("") | st.builds(lambda: KeyPair.new().public),
    role=st.sampled_from(["head", "node"]),
    name=st.text(max_size=80).map(clean_name),
    protocol=st.integers(0, 65535),
    control=ports,
    door=ports,
    bulk=ports,
    api=ports,
    addresses=st.lists(addresses.map(str), min_size=1, max_size=5, unique=True).map(tuple),
)


@given(announcements, st.integers(0))
def test_what_is_written_is_read(announcement: Announcement, count: int) -> None:
    assert Announcement.from_text(text_of(announcement.to_text(count))) == announcement


def test_each_record_is_new() -> None:
    announcement = Announcement(key=KEY, role="node", name="desk", addresses=("10.0.0.1",))
    assert announcement.to_text(1) != announcement.to_text(2)


@given(st.lists(addresses.map(str), min_size=1, max_size=32, unique=True))
def test_the_first_addresses_are_kept_if_there_is_no_room_for_all(many: list[str]) -> None:
    announcement = Announcement(key=KEY, role="node", name="desk", addresses=tuple(many))
    read = Announcement.from_text(text_of(announcement.to_text(1))).addresses
    assert read == announcement.addresses[: len(read)]
    assert len(read) == len(many) or len(",".join(many[: len(read) + 1])) > 245


def test_another_protocol_is_read_so_that_it_can_be_named() -> None:
    text = text_of(GOOD | {"protocol": str(PROTOCOL + 1), "version": "9.9", "something": "new"})
    read = Announcement.from_text(text)
    assert (read.name, read.protocol, read.version) == ("desk", PROTOCOL + 1, "9.9")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", ""), ("key", "a" * 39), ("key", "a" * 41), ("key", "a" * 39 + "\n"), ("key", "ä" * 40),
        ("fleet", "x"), ("role", "king"), ("role", ""),
        ("name", ""), ("name", "a\x1b[31m"), ("name", "a\nb"), ("name", "<b>"), ("name", "[red]"), ("name", "a b"),
        ("name", "x" * 64), ("name", "\u202edesk"),
        ("control", "0"), ("control", "65536"), ("control", "-1"), ("door", "ssh"), ("bulk", ""), ("bulk", "1e9"),
        ("api", "0"), ("api", "http"),
        ("protocol", "x"), ("protocol", "-1"), ("protocol", "9" * 200), ("version", "1\x00"), ("version", "1" * 41),
        ("addresses", ""), ("addresses", "localhost"), ("addresses", "127.0.0.1"), ("addresses", "10.0.0.1,::1"),
        ("addresses", "224.0.0.1"), ("addresses", "0.0.0.0"), ("addresses", "fe80::1%eth0"), ("addresses", "10.0.0.1,"),
        ("addresses", ",".join(["1.1.1.1"] * 30 + ["x"])),
    ],
)  # fmt: skip
def test_what_is_not_as_agreed_is_refused(field: str, value: str) -> None:
    with pytest.raises(WireError, match=field):
        Announcement.from_text(text_of(GOOD | {field: value}))


@pytest.mark.parametrize("field", ["key", "role", "name", "addresses"])
def test_what_is_missing_is_named(field: str) -> None:
    with pytest.raises(WireError, match=field):
        Announcement.from_text(text_of({name: value for name, value in GOOD.items() if name != field}))


@pytest.mark.parametrize("text", [b"", b"\0", b"\xff", b"\x05key", raw(b"key"), raw(b"name=\xff\xfe"), raw(b"\xff=1")])
def test_a_broken_record_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        Announcement.from_text(text)


@given(st.binary(max_size=9000))
def test_no_record_does_harm(text: bytes) -> None:
    with pytest.raises(WireError):
        Announcement.from_text(text)


def test_our_own_must_be_right_too() -> None:
    with pytest.raises(ValidationError):
        Announcement(key=KEY, role="node", name="my PC")
