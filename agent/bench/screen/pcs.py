"""PCs that do not exist."""

from __future__ import annotations

import base64
import hashlib
import math

from tui.client.state import Condition, Device, Hardware, LinkState, Node, Versions

GB = 10**9

_KINDS = (
    ("Intel(R) Core(TM) Ultra 7 155H", 16, 32, "Intel(R) Arc(TM) Graphics (iGPU)", True),
    ("Intel(R) Core(TM) i7-8700", 6, 16, None, False),
    ("Intel(R) Core(TM) Ultra 9 285K", 24, 64, "Intel(R) Graphics (iGPU)", False),
    ("AMD Ryzen 7 5800X", 8, 32, None, False),
    ("Intel(R) Core(TM) i5-1240P", 12, 16, "Intel(R) Iris(R) Xe Graphics (iGPU)", True),
)
"""Processor, cores, memory in GB, GPU, whether it is a laptop."""


def pc(number: int, since: float, now: float, *, is_head: bool = False) -> Node:
    """The PC of a number, as it is `now` seconds after its fleet began (`since`, in seconds since 1970)."""
    processor, cores, memory, gpu, is_laptop = _KINDS[number % len(_KINDS)]
    devices = [Device(name="CPU", full_name=processor)]
    if gpu:
        devices.append(Device(name="GPU", full_name=gpu, memory=memory * GB // 2, driver="32.0.101.6790"))
    wave = (1 + math.sin(now / 11 + number)) / 2
    return Node(
        name=name_of(number),
        key=key_of(number),
        address=f"192.168.7.{10 + number}",
        addresses=(f"192.168.7.{10 + number}", f"fe80::{number:x}"),
        since=since + number,
        is_head=is_head,
        versions=Versions(edge_agent="0.1.0", protocol=1, openvino="2026.4.1", python="3.11.9", system="Linux 6.8"),
        hardware=Hardware(
            processor=processor, cores=cores, memory=memory * GB, devices=tuple(devices), is_laptop=is_laptop
        ),
        condition=Condition(
            memory_free=round(memory * GB * (0.5 - 0.1 * wave)),
            memory_allowed=round(memory * GB * 0.7),
            disk_free=200 * GB,
            battery=round(0.9 - 0.3 * wave, 2) if is_laptop else None,
            on_mains=not is_laptop or number % 2 == 0,
            temperature=round(52 + 20 * wave, 1) if number % 4 else None,
            load=round(0.35 + 0.5 * wave, 3),
        ),
        device="GPU" if gpu else "CPU",
        memory_planned=round(memory * GB * 0.4),
    )


def links(number: int, count: int) -> dict[str, LinkState]:
    """A PC's links to those after it; a way is measured from one of its ends."""
    return {
        key_of(other): LinkState(
            latency_ms=round(0.18 + (number * other) % 7 / 10, 2),
            bytes_per_second=118e6 if (number + other) % 5 else 11.4e6,
        )
        for other in range(number + 1, count)
    }


def name_of(number: int) -> str:
    """What a PC is called."""
    return f"pc-{number + 1}"


def key_of(number: int) -> str:
    """Its public key."""
    return base64.b85encode(hashlib.sha256(f"synthetic {number}".encode()).digest()).decode()
