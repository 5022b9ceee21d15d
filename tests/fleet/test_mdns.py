"""Discovery between PCs with networks of their own: real multicast over a bridge."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from lab_parts import Host, Lab, LabError, Process

AGENT = Path(__file__).with_name("mdns_agent.py")
SHORT_LIFE = 5
LONG_LIFE = 600
"""Longer than any test waits: whoever is gone before has said goodbye, or was replaced."""


class Agent:
    """A process that announces itself on a host and sees others."""

    def __init__(self, host: Host, letter: str = "", life: int = LONG_LIFE, **fields: object) -> None:
        name = f"{host.name}{letter}"
        fields = {"key": (letter or host.name[-1]) * 40, "role": "node", "name": name, "bulk": 5000} | fields
        self._process = host.start([sys.executable, AGENT, json.dumps(fields), life])

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What it has printed last."""
        lines = self._lines
        return json.loads(lines[-1]) if lines else []  # type: ignore[no-any-return]

    @property
    def _lines(self) -> list[str]:
        """Whole ones: it may be writing."""
        return self._process.stdout.rpartition("\n")[0].splitlines()

    @property
    def history(self) -> list[list[str]]:
        """The names it saw at each change."""
        return [[one["name"] for one in json.loads(line)] for line in self._lines]

    def names(self) -> list[str]:
        return sorted(one["name"] for one in self.seen)

    def bulk_ports(self) -> dict[str, int]:
        return {one["name"]: one["bulk"] for one in self.seen}

    def end(self) -> None:
        """Goodbye. Nothing of it stays, and it has not complained."""
        self._process.terminate()
        assert self._process.wait() == 0, self._process.stderr
        assert self.seen == ["MainThread"]
        assert not self._process.stderr

    @property
    def process(self) -> Process:
        return self._process


def ip(host: Host, command: str) -> None:
    done = host.run(["ip", *command.split()])
    assert done.returncode == 0, done.stderr


def reach_from(host: Host, *addresses: str) -> str:
    """The address that connects from a host, or the error."""
    return host.run([sys.executable, "-c", REACH.format(addresses=addresses)]).stdout.strip()


REACH = """
from agent.fleet.discovery.reach import reach
from shards.errors import StageError
try:
    print(reach({addresses!r}, 5000))
except StageError as error:
    print(error)
"""

LISTEN = """
import socket, time
with socket.create_server(("::", 5000), family=socket.AF_INET6, dualstack_ipv6=True):
    print("listening", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with ExitStack() as stack:
        try:
            lab = stack.enter_context(Lab(3))
        except LabError as error:
            pytest.skip(f"this machine cannot have a lab: {error}")
        yield lab


def test_all_see_all_others_and_a_goodbye(lab: Lab) -> None:
    agents = [Agent(host) for host in lab.hosts]
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1", "pc2"], ["pc0", "pc2"], ["pc0", "pc1"]])
    assert {tuple(one["addresses"]) for one in agents[0].seen} == {("10.77.0.2", "fd77::2"), ("10.77.0.3", "fd77::3")}
    agents[2].end()
    assert eventually(lambda: [agent.names() for agent in agents[:2]] == [["pc1"], ["pc0"]])
    agents[1].end()
    agents[0].end()


def test_joins_and_leaves_in_a_row(lab: Lab, request: pytest.FixtureRequest) -> None:
    """Six, and with --exhaustive twenty."""
    watching = Agent(lab.hosts[0])
    staying = Agent(lab.hosts[1])
    for number in range(20 if request.config.getoption("exhaustive") else 6):
        agent = Agent(lab.hosts[2], bulk=6000 + number)
        assert eventually(lambda number=number: watching.bulk_ports() == {"pc1": 5000, "pc2": 6000 + number}), number
        if number % 2:
            agent.process.kill()  # and no goodbye: its successor takes its place
        else:
            agent.end()
            assert eventually(lambda: watching.names() == ["pc1"]), number
    last = Agent(lab.hosts[2])
    assert eventually(lambda: watching.bulk_ports() == {"pc1": 5000, "pc2": 5000})
    assert eventually(lambda: (staying.names(), last.names()) == (["pc0", "pc2"], ["pc0", "pc1"]))
    assert all(len(names) == len(set(names)) for names in watching.history)  # not even for a moment
    last.end()
    assert eventually(lambda: watching.names() == ["pc1"])


def test_one_who_is_killed_is_forgotten_and_the_others_are_not(lab: Lab) -> None:
    watching = Agent(lab.hosts[0])
    killed = Agent(lab.hosts[1], life=SHORT_LIFE)
    staying = Agent(lab.hosts[2], life=3 * SHORT_LIFE)  # a busy machine may renew it late
    assert eventually(lambda: watching.names() == ["pc1", "pc2"])
    killed.process.kill()
    assert eventually(lambda: watching.names() == ["pc2"])
    time.sleep(4 * SHORT_LIFE)
    assert [sorted(names) for names in watching.history][-2:] == [["pc1", "pc2"], ["pc2"]]
    staying.end()
    assert eventually(lambda: watching.names() == [])


def test_one_who_sleeps_is_forgotten_and_comes_back(lab: Lab) -> None:
    watching = Agent(lab.hosts[0])
    sleeping = Agent(lab.hosts[1], life=SHORT_LIFE)
    assert eventually(lambda: watching.names() == ["pc1"])
    sleeping.process.suspend()
    assert eventually(lambda: watching.names() == [])
    sleeping.process.resume()
    assert eventually(lambda: watching.names() == ["pc1"])


def test_a_cable_is_pulled_out_and_put_in_again(lab: Lab) -> None:
    agents = [Agent(host, life=SHORT_LIFE) for host in lab.hosts[:2]]
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1"], ["pc0"]])
    lab.cut(1)
    assert eventually(lambda: [agent.names() for agent in agents] == [[], []])
    lab.heal(1)
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1"], ["pc0"]])


def test_new_addresses_are_followed(lab: Lab) -> None:
    watching = Agent(lab.hosts[0])
    moving = Agent(lab.hosts[1])
    assert eventually(lambda: watching.names() == ["pc1"])
    ip(lab.hosts[1], "addr add 10.77.0.77/24 dev eth0")
    assert eventually(lambda: watching.seen[0]["addresses"] == ["10.77.0.2", "10.77.0.77", "fd77::2"])
    ip(lab.hosts[1], "addr del 10.77.0.2/24 dev eth0")  # takes the second one of its network along
    ip(lab.hosts[1], "addr replace 10.77.0.77/24 dev eth0")
    assert eventually(lambda: watching.seen[0]["addresses"] == ["10.77.0.77", "fd77::2"])
    late = Agent(lab.hosts[2])
    assert eventually(lambda: (late.names(), moving.names()) == (["pc0", "pc1"], ["pc0", "pc2"]))
    moving.end()
    assert eventually(lambda: watching.names() == ["pc2"])


def test_a_network_that_comes_later(lab: Lab) -> None:
    host = lab.hosts[1]
    ip(host, "link set eth0 down")
    early, waiting = Agent(host), Agent(lab.hosts[0])
    time.sleep(3)
    assert (early.seen, waiting.seen) == ([], [])
    ip(host, "link set eth0 up")
    ip(host, "addr replace fd77::2/64 dev eth0")  # without nodad: it may not be used at once
    assert eventually(lambda: (early.names(), waiting.names()) == (["pc0"], ["pc1"]))


def test_without_ipv4(lab: Lab) -> None:
    for host in lab.hosts:
        ip(host, f"addr del {host.ipv4}/24 dev eth0")
    agents = [Agent(host) for host in lab.hosts]
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1", "pc2"], ["pc0", "pc2"], ["pc0", "pc1"]])
    assert [one["addresses"] for one in agents[0].seen if one["name"] == "pc1"] == [["fd77::2"]]


def test_without_ipv6(lab: Lab) -> None:
    for host in lab.hosts:
        done = host.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6"])
        assert done.returncode == 0, done.stderr
    agents = [Agent(host) for host in lab.hosts]
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1", "pc2"], ["pc0", "pc2"], ["pc0", "pc1"]])
    assert [one["addresses"] for one in agents[0].seen if one["name"] == "pc1"] == [["10.77.0.2"]]


def test_with_nothing_but_a_cable(lab: Lab) -> None:
    for host in lab.hosts[:2]:
        ip(host, f"addr del {host.ipv4}/24 dev eth0")
        ip(host, f"addr del {host.ipv6}/64 dev eth0")
    agents = [Agent(host) for host in lab.hosts[:2]]
    assert eventually(lambda: [agent.names() for agent in agents] == [["pc1"], ["pc0"]])
    (address,) = agents[0].seen[0]["addresses"]
    assert address.startswith("fe80::")
    lab.hosts[1].start([sys.executable, "-c", LISTEN]).wait_for("listening")
    assert reach_from(lab.hosts[0], address).startswith(f"{address}%")


def test_several_on_one_pc(lab: Lab) -> None:
    agents = [Agent(lab.hosts[0], "a"), Agent(lab.hosts[0], "b"), Agent(lab.hosts[1], "c")]
    assert eventually(
        lambda: [agent.names() for agent in agents] == [["pc0b", "pc1c"], ["pc0a", "pc1c"], ["pc0a", "pc0b"]]
    )
    agents[0].end()
    assert eventually(lambda: [agent.names() for agent in agents[1:]] == [["pc1c"], ["pc0b"]])


def test_a_cloned_home_folder_is_seen_as_two(lab: Lab) -> None:
    watching = Agent(lab.hosts[0])
    first, second = Agent(lab.hosts[1], key="k" * 40, name="desk"), Agent(lab.hosts[2], key="k" * 40, name="desk")
    assert eventually(lambda: {one["addresses"][0] for one in watching.seen} == {"10.77.0.2", "10.77.0.3"})
    assert eventually(lambda: (first.names(), second.names()) == (["desk", "pc0"], ["desk", "pc0"]))
    second.process.kill()


def test_two_fleets_are_seen_apart(lab: Lab) -> None:
    heads = [Agent(lab.hosts[i], role="head", name=f"fleet-{i}", fleet=str(i) * 40, control=8115) for i in range(2)]
    watching = Agent(lab.hosts[2])
    fields = ("role", "name", "fleet", "control")
    expected = [("head", f"fleet-{i}", str(i) * 40, 8115) for i in range(2)]
    assert eventually(lambda: sorted(tuple(one[field] for field in fields) for one in watching.seen) == expected)
    heads[0].end()
    assert eventually(lambda: watching.names() == ["fleet-1"])


def test_the_address_that_connects_is_used(lab: Lab) -> None:
    for host in lab.hosts:  # as with containers: the same network on each PC, and it leads nowhere else
        ip(host, "link add docker0 type bridge")
        ip(host, "addr add 172.17.0.1/16 dev docker0")
        ip(host, "link set docker0 up")
        host.start([sys.executable, "-c", LISTEN]).wait_for("listening")
    agents = [Agent(host) for host in lab.hosts[:2]]
    assert eventually(lambda: bool(agents[0].seen))
    addresses = agents[0].seen[0]["addresses"]
    assert addresses[:2] == ["10.77.0.2", "fd77::2"]
    assert reach_from(lab.hosts[0], "172.17.0.1", "10.77.0.99", "fd77::2") == "fd77::2"
    assert reach_from(lab.hosts[0], *addresses) == "10.77.0.2"
    error = reach_from(lab.hosts[0], "10.77.0.99", "10.88.0.1", "fd77::99")
    assert all(part in error for part in ("10.77.0.99 (no ", "10.88.0.1 (no way there)", "fd77::99 (no ", "port 5000"))
