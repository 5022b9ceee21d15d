"""What the processor can do."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from agent.doctor.check import Check

_TOPIC = "processor"
_WINDOWS_FEATURES = {40: "avx2", 41: "avx512f"}
"""Numbers of IsProcessorFeaturePresent (winnt.h)."""


@dataclass(frozen=True, slots=True)
class Processor:
    """Facts."""

    machine: str
    flags: frozenset[str] | None
    """As Linux spells them; None where they can't be told."""


def check() -> list[Check]:
    """Look at this PC."""
    return [judge(Processor(platform.machine().lower(), _flags()))]


def judge(processor: Processor) -> Check:
    """What its instructions mean for the speed of a stage on the CPU."""
    flags = processor.flags
    if processor.machine not in ("x86_64", "amd64"):
        return Check(_TOPIC, "ok", f"a {processor.machine} processor: stages run in OpenVINO's portable kernels")
    if flags is None:
        return Check(_TOPIC, "ok", "this system does not tell the processor's instructions; OpenVINO finds out itself")
    if any(flag.startswith("amx") for flag in flags):
        return Check(_TOPIC, "ok", "AMX: matrix units, so prompts and many users at once are quick")
    if flags & {"avx512_vnni", "avx_vnni"}:
        return Check(_TOPIC, "ok", "8-bit dot products (VNNI): prompts are quick, tokens as quick as memory is")
    if "avx512f" in flags:
        return Check(_TOPIC, "ok", "AVX-512: tokens are as quick as memory is")
    if "avx2" in flags:
        return Check(_TOPIC, "ok", "AVX2: tokens are as quick as memory is, long prompts take their time")
    if "hypervisor" in flags:
        return Check(
            _TOPIC,
            "warning",
            "this virtual machine is not shown AVX2, so the CPU is several times slower than it could be",
            "Set the virtual machine's processor type to that of its host.",
        )
    return Check(
        _TOPIC,
        "warning",
        "this processor has no AVX2: stages on its CPU are several times slower than on one that has",
        "Use its GPU if it has one (--device GPU); else the head may leave this PC out.",
    )


def _flags() -> frozenset[str] | None:
    if sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return frozenset(name for number, name in _WINDOWS_FEATURES.items() if present(number))
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return frozenset(value.split())
    except OSError:
        pass  # not Linux
    return None
