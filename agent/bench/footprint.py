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
    """Bytes that are resident for it alone: pages of a model's file, which all share, come and go by themselves."""

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
                memory=process.memory_full_info().uss,
            )
