"""What a process holds of the system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Footprint:
    """A process at one moment."""

    threads: int
    sockets: int
    """Of TCP and UDP."""
    files: int
    """Open files and sockets of all kinds; 0 on Windows, where handles come and go by themselves."""
    children: int
    memory: int
    """Bytes that are resident and its own. Pages of mapped files, such as a model's weights, come and go by themselves,
    and whose they are depends on who else has mapped them."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """Measure a process.

        Raises:
            psutil.NoSuchProcess: it has ended.
        """
        process = psutil.Process(pid)
        with process.oneshot():
            return cls(
                threads=process.num_threads(),
                sockets=len(process.net_connections("inet")),
                files=process.num_fds() if psutil.POSIX else 0,
                children=len(process.children()),
                memory=_own_memory(process),
            )


def _own_memory(process: psutil.Process) -> int:
    info = process.memory_info()
    if psutil.LINUX:
        return int(info.rss - info.shared)
    return int(info.private if psutil.WINDOWS else process.memory_full_info().uss)
