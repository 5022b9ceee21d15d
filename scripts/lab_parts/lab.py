"""The lab: hosts on a bridge."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from lab_parts.host import Host
from lab_parts.link import BRIDGE
from lab_parts.namespaces import LabError, Namespace, require_tools

MOST_HOSTS = 200
_PREFIX = "edge-agent-lab-"
_LOCK = "lock"


class Lab:
    """`nodes` hosts, `pc0` first, whose links have a rate and a delay.

    `delay_ms` is how long what a host sends is on its way: with 5 ms a round trip between two hosts takes 10.
    When the context ends, all processes, the network and the hosts' home folders are gone; with `keep`, a new or empty
    folder, the homes and all that was printed are there afterwards.
    """

    def __init__(self, nodes: int, rate: str = "1gbit", delay_ms: float = 0.0, keep: Path | None = None) -> None:
        if not 1 <= nodes <= MOST_HOSTS:
            raise LabError(f"a lab has 1 to {MOST_HOSTS} hosts, not {nodes}")
        self.hosts: list[Host] = []
        self._nodes, self._rate, self._delay_ms, self._keep = nodes, rate, delay_ms, keep
        self._stack = ExitStack()

    def __enter__(self) -> Lab:
        """Build it.

        Raises:
            LabError: this machine cannot have one, and why.
        """
        require_tools()
        with ExitStack() as stack:
            self.folder = stack.enter_context(_folder(self._keep))
            hub = Namespace()
            stack.callback(hub.close)
            hub.batch("ip", [
                f"link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
                f"link set {BRIDGE} addrgenmode none",
                f"link set {BRIDGE} up",
            ])  # fmt: skip
            for index in range(self._nodes):
                host = Host(index, hub, self.folder)
                self.hosts.append(host)
                stack.callback(host.close)
                host.link.set_rate(self._rate)
                host.link.set_delay(self._delay_ms)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def settings(self) -> dict[str, str | float]:
        """What its links were built with."""
        return {"rate": self._rate, "delay_ms": self._delay_ms}

    def cut(self, index: int) -> None:
        """Pull out a host's cable."""
        self.hosts[index].link.cut()

    def heal(self, index: int) -> None:
        """Put it in again."""
        self.hosts[index].link.heal()

    def set_multicast(self, passes: bool) -> None:
        """Let the bridge pass multicast on, or not, as some access points do. IPv6 needs it to find neighbours."""
        for host in self.hosts:
            host.link.set_multicast(passes)

    def set_rate(self, index: int, rate: str) -> None:
        """Change the rate of a host's link, in both directions."""
        self.hosts[index].link.set_rate(rate)

    def set_delay(self, index: int, milliseconds: float) -> None:
        """Change how long what a host sends is on its way."""
        self.hosts[index].link.set_delay(milliseconds)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The lab's folder. A temporary one is locked as long as its lab lives; those that are not locked go now."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise LabError(f"{keep} is not empty")
        yield keep.resolve()
        return
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:  # somebody else's, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / f".{_LOCK}").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / f".{_LOCK}").rename(folder / _LOCK)  # not before it is locked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
