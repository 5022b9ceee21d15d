"""Real multicast, but on loopback alone, and of a service of its own: who runs these tests may have a fleet on the
network, and agents of other tests are heard on loopback too, those that were killed for half a minute longer."""

from __future__ import annotations

import functools
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zeroconf
from eventually import eventually

from agent.fleet.discovery import discovery
from agent.fleet.discovery.discovery import Announcement, Discovery
from agent.fleet.discovery.heads import FoundHead, find_heads

OPEN = discovery._open
HERE = ("10.1.2.3", "fd00::3")


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What all agents of a test announce, and nobody else."""
    threads = set(threading.enumerate())
    service = f"_ea-{secrets.token_hex(4)}._tcp.local."
    monkeypatch.setattr(discovery, "SERVICE", service)
    monkeypatch.setattr(discovery, "_LIFE_SECONDS", 600)  # whoever is gone before has said goodbye, or was replaced
    monkeypatch.setattr(discovery, "_open", functools.partial(zeroconf.Zeroconf, interfaces=["127.0.0.1"]))
    yield service
    assert set(threading.enumerate()) <= threads


def announcement(letter: str, fleet: str = "") -> Announcement:
    return Announcement(key=letter * 40, fleet=fleet * 40, role="node", name=f"pc-{letter}")


def start(announce: Announcement | None, addresses: tuple[str, ...] = HERE) -> Discovery:
    return Discovery(announce, lambda _: None, addresses=lambda: addresses)


def names(one: Discovery) -> set[str]:
    return {other.name for other in one.others}


def test_two_agents_see_each_other_and_not_themselves() -> None:
    calls: list[tuple[Announcement, ...]] = []
    with Discovery(announcement("a"), calls.append, addresses=lambda: HERE) as one:
        with start(announcement("b")) as two:
            assert eventually(lambda: names(one) == {"pc-b"} and names(two) == {"pc-a"})
            assert one.others == (announcement("b").model_copy(update={"addresses": HERE}),)
            assert one.problem is None
        assert eventually(lambda: not one.others)
    assert calls[0] == (announcement("b").model_copy(update={"addresses": HERE}),)
    assert calls[-1] == ()


def test_a_change_is_announced_and_so_is_the_way_back() -> None:
    with start(announcement("a")) as one, start(None) as two:
        for fleet in ("", "f", "", "g", ""):
            one.update(announcement("a", fleet=fleet))
            assert eventually(lambda fleet=fleet: [other.fleet[:1] for other in two.others] == [fleet])  # type: ignore[misc]


def test_addresses_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(discovery, "_ROUND_SECONDS", 0.1)
    here = [HERE]
    with Discovery(announcement("a"), lambda _: None, addresses=lambda: here[0]), start(None) as two:
        assert eventually(lambda: [other.addresses for other in two.others] == [HERE])
        here[0] = ("10.9.9.9",)
        assert eventually(lambda: [other.addresses for other in two.others] == [("10.9.9.9",)])
        here[0] = ()  # no network: what is known stays until it expires
        time.sleep(0.3)
        here[0] = HERE
        assert eventually(lambda: [other.addresses for other in two.others] == [HERE])


def test_a_quick_return_leaves_one() -> None:
    with start(None) as watching:
        for _ in range(5):
            with start(announcement("a")):
                assert eventually(lambda: names(watching) == {"pc-a"})
        with start(announcement("a")):
            assert eventually(lambda: names(watching) == {"pc-a"})
            time.sleep(1)  # until the last goodbye has had its effect
            assert [other.name for other in watching.others] == ["pc-a"]


def test_two_with_one_identity_are_both_listed() -> None:
    with start(None) as watching, start(announcement("a"), ("10.0.0.1",)) as one:
        assert eventually(lambda: len(watching.others) == 1)
        with start(announcement("a"), ("10.0.0.2",)) as two:
            assert eventually(lambda: {other.addresses for other in watching.others} == {("10.0.0.1",), ("10.0.0.2",)})
            assert eventually(lambda: [other.addresses for other in one.others] == [("10.0.0.2",)])
            assert eventually(lambda: [other.addresses for other in two.others] == [("10.0.0.1",)])
        assert eventually(lambda: [other.addresses for other in watching.others] == [("10.0.0.1",)])


def test_what_is_malformed_is_ignored(service: str) -> None:
    hostile = zeroconf.Zeroconf(interfaces=["127.0.0.1"])
    try:
        with start(None) as watching:
            for number, properties in enumerate(
                [
                    {},
                    {"key": "x"},
                    {"name": "[red]"},
                    {"count": "9" * 240},
                    {"key": "a" * 40, "role": "node", "name": "y"},
                ]
            ):
                hostile.register_service(
                    zeroconf.ServiceInfo(
                        service, f"bad-{number}.{service}", 1, properties=properties, parsed_addresses=["10.0.0.1"]
                    ),
                    cooperating_responders=True,
                )
            with start(announcement("b")):
                assert eventually(lambda: names(watching) == {"pc-b"})
    finally:
        hostile.close()


@pytest.mark.parametrize("labels", [[b"\xff" * 63], [b"a", b"", b"b"], [b"a.b"], [b"."], [b"x" * 63] * 2, [b"\x1b[2J"]])
def test_names_that_cannot_be_written_again_do_no_harm(
    labels: list[bytes], service: str, caplog: pytest.LogCaptureFixture
) -> None:
    def encoded(*labels: bytes) -> bytes:
        return b"".join(bytes([len(label)]) + label for label in labels)

    name = encoded(*service.rstrip(".").encode().split(b".")) + b"\0"
    alias = encoded(*labels) + name
    header, pointer = struct.pack("!6H", 0, 0x8400, 0, 1, 0, 0), struct.pack("!HHIH", 12, 1, 120, len(alias))
    with start(None) as watching, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        assert eventually(lambda: watching._responder is not None)
        sender.sendto(header + name + pointer + alias, ("224.0.0.251", 5353))
        with start(announcement("b")):
            assert eventually(lambda: names(watching) == {"pc-b"})
        assert eventually(lambda: not watching.others)
    assert not caplog.records


def test_without_a_network_it_goes_on_trying(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    works = discovery._open

    def fails() -> zeroconf.Zeroconf:
        raise OSError("no network")

    monkeypatch.setattr(discovery, "_ROUND_SECONDS", 0.1)
    monkeypatch.setattr(discovery, "_open", fails)
    with start(announcement("a")) as one, start(None) as two:
        assert eventually(lambda: one.problem == "no network" and two.problem == "no network")
        time.sleep(0.3)
        assert caplog.text.count("no network") == 2  # each says it once
        monkeypatch.setattr(discovery, "_open", works)
        assert eventually(lambda: names(two) == {"pc-a"} and one.problem is None)


def test_what_fails_later_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(announcement("a")) as one, start(announcement("b")) as two:
        assert eventually(lambda: names(one) == {"pc-b"} and names(two) == {"pc-a"})
        assert one._responder is not None
        monkeypatch.setattr(one._responder, "read", lambda name: fail())
        broken = one._responder

        def fail() -> None:
            raise zeroconf.EventLoopBlocked

        assert eventually(lambda: one._responder not in (None, broken))
        assert eventually(lambda: names(two) == {"pc-a"} and one.problem is None)


def test_who_was_asleep_says_so_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(announcement("a")) as one, start(None) as two:
        assert eventually(lambda: names(two) == {"pc-a"})
        before = one._responder
        one._wall_clock -= 3600
        assert eventually(lambda: one._responder not in (None, before))
        assert eventually(lambda: names(two) == {"pc-a"})


def test_a_pc_without_ipv6_still_has_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[zeroconf.IPVersion] = []

    def open_(ip_version: zeroconf.IPVersion) -> None:
        asked.append(ip_version)
        if ip_version is zeroconf.IPVersion.All:
            raise OSError(97, "Address family not supported by protocol")
        raise RuntimeError("No interfaces to listen on")

    monkeypatch.setattr(zeroconf, "Zeroconf", open_)
    with pytest.raises(OSError, match="No interfaces"):
        OPEN()
    assert asked == [zeroconf.IPVersion.All, zeroconf.IPVersion.V4Only]


def test_heads_are_found_with_the_address_of_their_api(tmp_path: Path) -> None:
    head = announcement("a", fleet="f").model_copy(update={"role": "head", "api": 8114})
    found: list[FoundHead] = []

    def looked_for() -> bool:
        found[:] = find_heads(2.0, tmp_path)
        return bool(found)

    with start(head), start(announcement("b", fleet="f")):
        assert eventually(looked_for)
    assert [(one.fleet, one.urls) for one in found] == [("f" * 40, ("http://10.1.2.3:8114", "http://[fd00::3]:8114"))]
