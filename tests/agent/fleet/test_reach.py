from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from eventually import eventually

from agent.fleet.discovery import reach as module
from agent.fleet.discovery.reach import candidates, reach
from shards.errors import StageError


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def open_files() -> int:
    process = psutil.Process()
    return int(process.num_handles() if psutil.WINDOWS else process.num_fds())


def leaves_nothing(act: Callable[[], object]) -> bool:
    """Whether as much is open afterwards as before; what earlier tests began may be ending meanwhile."""
    before = open_files(), threading.active_count()
    act()
    return (open_files(), threading.active_count()) == before


def test_the_address_that_answers_wins(port: int) -> None:
    def reach_it() -> None:
        assert reach(["127.0.0.1"], port) == "127.0.0.1"
        assert reach(["no address", "::1", "127.0.0.1"], port) == "127.0.0.1"

    assert eventually(lambda: leaves_nothing(reach_it))


def test_ipv6(port: int) -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this PC has no IPv6: {error}")
    with server:
        assert reach(["::1"], server.getsockname()[1]) == "::1"


def test_the_error_names_every_address_and_what_to_check(listening: socket.socket, port: int) -> None:
    listening.close()

    def fail() -> None:
        with pytest.raises(StageError) as caught:
            reach(["127.0.0.1", "::1"], port)
        assert all(part in str(caught.value) for part in ("127.0.0.1 (refused)", "::1 (", f"port {port}", "firewall"))

    assert eventually(lambda: leaves_nothing(fail))


def test_no_address_is_an_error_at_once() -> None:
    with pytest.raises(StageError, match="it has no address"):
        reach(["nonsense", ""], 1, seconds=1000)


def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # a connection that neither comes about nor fails
    monkeypatch.setattr(module, "_start", lambda address, port, selector, opened: hang(selector, opened, address))

    def hang(selector: module.selectors.BaseSelector, opened: module.ExitStack, address: str) -> int:
        one, other = socket.socketpair()
        opened.enter_context(one)
        opened.enter_context(other)
        selector.register(one, module.selectors.EVENT_READ, address)
        return module.errno.EINPROGRESS

    began = time.monotonic()
    with pytest.raises(StageError, match=r"10.0.0.1 \(no answer\), 10.0.0.2 \(no answer\)"):
        reach(["10.0.0.1", "10.0.0.2"], 1, seconds=0.3)
    assert time.monotonic() - began >= 0.3


def test_an_address_of_this_pc_as_well_is_not_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_addresses", lambda: ("192.168.1.5", "172.17.0.1"))
    assert candidates(["192.168.1.6", "172.17.0.1", "127.0.0.1"]) == ["192.168.1.6"]
    assert candidates(["192.168.1.5", "172.17.0.1"]) == ["192.168.1.5", "172.17.0.1"]  # the other one is here
    assert candidates(["127.0.0.1"]) == ["127.0.0.1"]


def test_a_link_local_address_is_tried_on_every_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_addresses", lambda: ())
    monkeypatch.setattr(module.socket, "if_nameindex", lambda: [(2, "eth0"), (3, "eth1")])
    assert candidates(["fe80::1", "fe80::2%3"]) == ["fe80::1%2", "fe80::1%3", "fe80::2%3"]


def test_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_addresses", lambda: ())
    assert candidates(["localhost", "10.0.0.1", "10.0.0.1", "010.0.0.1"]) == ["10.0.0.1"]
