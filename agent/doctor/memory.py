"""Free memory, swap, and what a container is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.doctor.check import Check
from agent.fleet.node.hardware import RESERVE_BYTES

_TOPIC = "memory"
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts, in bytes."""

    total: int
    free: int
    swap_total: int
    swap_used: int
    limit: int | None = None
    """A container's; None: no limit below what the PC has."""


def check() -> list[Check]:
    """Look at this PC."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    limits = [int(text) for path in _CONTAINER_LIMITS if (text := _text(path)).isdigit()]
    limit = min((limit for limit in limits if limit < memory.total), default=None)
    return judge(Memory(memory.total, memory.available, swap.total, swap.used, limit))


def judge(memory: Memory) -> list[Check]:
    """Whether there is room for a stage."""
    free = f"{_gb(memory.free)} of {_gb(memory.total)} free"
    if memory.free < RESERVE_BYTES:
        checks = [
            Check(
                _TOPIC,
                "fault",
                f"{free}: less than the {_gb(RESERVE_BYTES)} that are left to your own programs, so no stage fits",
                "Close programs, or name what stages may take with --memory.",
            )
        ]
    else:
        offered = _gb(memory.free - RESERVE_BYTES)
        checks = [Check(_TOPIC, "ok", f"{free}; stages may take {offered} unless --memory says otherwise")]
    if memory.limit is not None:
        checks.append(
            Check(
                _TOPIC,
                "warning",
                f"this container may use {_gb(memory.limit)} of the PC's {_gb(memory.total)}; more ends its processes",
                f"Say --memory with less than {_gb(memory.limit)}, or give the container more.",
            )
        )
    if memory.swap_used > memory.free:
        checks.append(
            Check(
                _TOPIC,
                "warning",
                f"{_gb(memory.swap_used)} are swapped out, more than is free: a stage would wait for the disk",
                "Close programs, or offer less with --memory.",
            )
        )
    elif memory.swap_total:
        checks.append(Check(_TOPIC, "ok", f"swap: {_gb(memory.swap_used)} of {_gb(memory.swap_total)} used"))
    return checks


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
