"""A host's cable: from its `eth0` to the bridge, with a rate, a delay, and somebody to pull it out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lab_parts.namespaces import LabError, Namespace

BRIDGE = "br0"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_BURST_SECONDS, _LEAST_BURST = 1e-3, 16_000
"""What may leave at once after a pause. A larger segment is cut into packets first."""
_QUEUE_SECONDS, _LEAST_QUEUE = 50e-3, 256_000
"""What waits for the line before packets are lost."""
_DELAY = Path(__file__).with_name("delay.py")


class Link:
    """A pair of interfaces: `eth0` on the host, `pc<i>` on the bridge.

    A delay puts another pair, `in<i>` and `out<i>`, between `pc<i>` and the bridge, with a process that holds frames.
    """

    def __init__(self, hub: Namespace, host: Namespace, index: int, addresses: tuple[str, str]) -> None:
        self._hub, self._host = hub, host
        self._port, self._in, self._out = f"pc{index}", f"in{index}", f"out{index}"
        self._holder: subprocess.Popen[str] | None = None
        hub.batch("ip", [
            f"link add {self._port} type veth peer name eth0 netns {host.pid}",
            f"link set {self._port} addrgenmode none",
            f"link set {self._port} master {BRIDGE} up",
        ])  # fmt: skip
        host.batch("ip", [
            "link set lo up",
            "link set eth0 up",
            f"addr add {addresses[0]} brd + dev eth0",
            f"addr add {addresses[1]} dev eth0 nodad",
        ])  # fmt: skip

    def set_rate(self, rate: str) -> None:
        """Limit each direction to a rate such as `1gbit` or `100mbit`."""
        bits = bits_per_second(rate)
        burst = max(_LEAST_BURST, round(bits / 8 * _BURST_SECONDS))
        queue = max(_LEAST_QUEUE, round(bits / 8 * _QUEUE_SECONDS))
        for where, interface in ((self._host, "eth0"), (self._hub, self._port)):
            where.batch("tc", [f"qdisc replace dev {interface} root tbf rate {rate} burst {burst} limit {queue}"])

    def set_delay(self, milliseconds: float) -> None:
        """Hold what the host sends for a time; what it receives comes at once."""
        if milliseconds < 0:
            raise LabError(f"a delay of {milliseconds} ms is not possible")
        if self._holder is not None and milliseconds:
            assert self._holder.stdin is not None
            self._holder.stdin.write(f"{milliseconds}\n")
            self._holder.stdin.flush()
        elif milliseconds:
            self._insert(milliseconds)
        elif self._holder is not None:
            self.close()
            self._hub.batch("ip", [f"link del {self._in}", f"link set {self._port} master {BRIDGE}"])

    def set_multicast(self, passes: bool) -> None:
        """Let the bridge pass multicast on to this host, or not."""
        port = self._out if self._holder else self._port
        self._hub.batch("ip", [f"link set {port} type bridge_slave mcast_flood {'on' if passes else 'off'}"])

    def cut(self) -> None:
        """Pull the cable out: both ends lose their carrier."""
        self._hub.batch("ip", [f"link set {self._port} down"])

    def heal(self) -> None:
        """Put the cable in again."""
        self._hub.batch("ip", [f"link set {self._port} up"])

    def close(self) -> None:
        """End the process that holds frames; what it holds is lost."""
        if self._holder is not None:
            self._holder.communicate()
            self._holder = None

    def _insert(self, milliseconds: float) -> None:
        self._hub.batch("ip", [
            f"link add {self._in} type veth peer name {self._out}",
            *(f"link set {end} addrgenmode none" for end in (self._in, self._out)),
            f"link set {self._in} up",
        ])  # fmt: skip
        command = [sys.executable, "-I", str(_DELAY), self._port, self._in, str(milliseconds)]
        self._holder = subprocess.Popen(
            [*self._hub.enter("net", "pid"), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise LabError(f"the delay of {self._port} could not be started")
        self._hub.batch("ip", [f"link set {self._port} nomaster", f"link set {self._out} master {BRIDGE} up"])


def bits_per_second(rate: str) -> float:
    """The rate as a number.

    Raises:
        LabError: it is not one like `1gbit`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match or not float(match[1]):
        raise LabError(f"{rate!r} is not a rate like 1gbit, 100mbit or 500kbit")
    return float(match[1]) * _UNITS[match[2]]
