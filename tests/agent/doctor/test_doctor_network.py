"""Multicast, firewall, ports, and the way to a head."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from agent.doctor import firewall, multicast, ports, reach
from agent.doctor.firewall import Firewall
from agent.doctor.interfaces import Interface, interfaces
from agent.doctor.multicast import Echoes
from agent.doctor.ports import Taken
from agent.doctor.reach import Answer

LAN = Interface("eth0", "192.168.1.20", "192.168.1.0/24")
WLAN = Interface("wlan0", "192.168.2.20", "192.168.2.0/24")


@pytest.mark.parametrize(
    ("echoes", "status", "words"),
    [
        (Echoes(()), "fault", "no network"),
        (Echoes((LAN,), error="Address already in use"), "fault", "Address already in use"),
        (Echoes((LAN, WLAN)), "fault", "did not come back on eth0, wlan0"),
        (Echoes((LAN,), frozenset({"eth0"}), frozenset({"192.168.1.9"})), "ok", "1 other devices"),
        (Echoes((LAN, WLAN), frozenset({"eth0"}), frozenset({"192.168.1.9"})), "ok", "not on wlan0"),
        (Echoes((LAN,), frozenset({"eth0"})), "ok", "no other device was heard"),
    ],
)
def test_multicast(echoes: Echoes, status: str, words: str) -> None:
    check = multicast.judge(echoes)
    assert check.status == status
    assert words in check.what
    assert check.next_step or echoes.others


def test_a_question_is_sent_and_heard_on_real_sockets() -> None:
    (check,) = multicast.check()
    assert check.topic == "multicast"
    assert "cannot be used" not in check.what


@pytest.mark.parametrize(
    ("facts", "words", "step"),
    [
        (Firewall((LAN,), unreachable=("192.168.1.20",)), "192.168.1.20 does not arrive", "Let TCP connections"),
        (Firewall((LAN,), ufw=True), "ufw is on", "sudo ufw allow from 192.168.1.0/24"),
        (Firewall((LAN,), firewalld_zone="public"), "firewalld (zone public)", "--add-source=192.168.1.0/24"),
        (Firewall((), input_dropped=True), "nftables is on", "YOUR-NETWORK"),
        (Firewall((LAN,), public_networks=("Wi-Fi",)), "public", "-NetworkCategory Private"),
    ],
)
def test_a_firewall(facts: Firewall, words: str, step: str) -> None:
    (check,) = firewall.judge(facts)
    assert check.status == ("fault" if facts.unreachable else "warning")
    assert words in check.what
    assert step in (check.next_step or "")


@pytest.mark.parametrize("facts", [Firewall((LAN,)), Firewall((LAN,), firewalld_zone="FedoraWorkstation")])
def test_no_firewall(facts: Firewall) -> None:
    assert [check.status for check in firewall.judge(facts)] == ["ok"]


def test_a_front_end_of_nftables_is_named_instead_of_it() -> None:
    (check,) = firewall.judge(Firewall((LAN,), ufw=True, input_dropped=True))
    assert "ufw" in check.what


def test_this_pcs_networks() -> None:
    for interface in interfaces():
        assert not interface.address.startswith("127.")
        assert "/" in interface.network
    assert all(check.topic == "firewall" for check in firewall.check())


@pytest.mark.parametrize(
    ("port", "taken", "status", "words"),
    [
        (8114, None, "ok", "is free"),
        (8114, Taken(7, "python edge-agent serve", is_ours=True), "ok", "in use by edge-agent, process 7"),
        (8114, Taken(7, "nginx"), "warning", "process 7 (nginx)"),
        (8114, Taken(), "warning", "a program this user may not see"),
        (8115, Taken(7, "nginx"), "ok", "takes another one"),
    ],
)
def test_ports(port: int, taken: Taken | None, status: str, words: str) -> None:
    check = ports.judge(port, "something", taken)
    assert check.status == status
    assert words in check.what


@pytest.mark.parametrize("name", ["edge-agent", "another"])
def test_who_has_a_port(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text(
        "import socket\n"
        "with socket.socket() as listener:\n"
        "    listener.bind(('127.0.0.1', 0))\n"
        "    listener.listen()\n"
        "    print(listener.getsockname()[1], flush=True)\n"
        "    input()\n",
        "utf-8",
    )
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        taken = ports._taken(port)
        server.communicate("\n")
    assert taken is not None
    if taken.pid is not None:  # what the system tells depends on it
        assert taken.pid == server.pid
        assert taken.command
        assert taken.is_ours == (name == "edge-agent")
    assert ports._taken(port) is None


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        (Answer("nobody is there"), ["fault"]),
        (Answer(milliseconds=0.7, is_zeromq=True), ["ok"]),
        (Answer(milliseconds=0.7), ["fault"]),
        (Answer(milliseconds=0.7, ahead=0.1), ["warning", "ok"]),
        (Answer(milliseconds=0.7, ahead=4000), ["warning", "warning"]),
    ],
)
def test_the_way_to_a_head(answer: Answer, statuses: list[str]) -> None:
    checks = reach.judge("192.168.1.20:8115", answer)
    assert [check.status for check in checks] == statuses
    assert all(check.next_step for check in checks if check.status != "ok")


@pytest.fixture
def api() -> Iterator[int]:
    """The port of something that speaks HTTP."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_real_answers(api: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_SECONDS", 60.0)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        public, secret = zmq.curve_keypair()
        router.curve_server, router.curve_publickey, router.curve_secretkey = True, public, secret
        port = router.bind_to_random_port("tcp://127.0.0.1")
        (check,) = reach.check("127.0.0.1", port)
        assert check.status == "ok"
    monkeypatch.setattr(reach, "_SECONDS", 3.0)  # so long it is waited for a greeting that does not come
    assert [check.status for check in reach.check("127.0.0.1", api)] == ["warning", "ok"]
    monkeypatch.setattr(reach, "_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = silent.getsockname()
        (refused,) = reach.check(*address)
        assert (refused.status, "no head listens" in refused.what) == ("fault", True)
        silent.listen()
        (mute,) = reach.check(*address)
        assert (mute.status, "something else" in mute.what) == ("fault", True)
    (unknown,) = reach.check("no.such.host.invalid", 8115)
    assert (unknown.status, "no PC of this name" in unknown.what) == ("fault", True)
