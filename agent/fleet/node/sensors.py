"""How hot and how busy a PC is, where its system tells."""

from __future__ import annotations

from typing import Any

import psutil

_CHIPS = ("coretemp", "k10temp", "k8temp", "zenpower", "cpu", "soc", "x86_pkg_temp", "amdgpu", "i915", "xe", "nouveau")
"""How Linux names the sensors of processors and GPUs; disks and radios have some as well."""

_POSSIBLE = (0.0, 150.0)
"""Degrees; sensors that are not connected say the strangest things."""

_LEAST_SECONDS = 0.5
"""Of all processors together, below which two looks are too close to compare."""


def temperature() -> float | None:
    """Degrees Celsius of the hottest sensor of processor or GPU; None where there is none, as on Windows."""
    look = getattr(psutil, "sensors_temperatures", None)
    try:
        found: dict[str, list[Any]] = look() if look else {}
    except (OSError, ValueError):  # of a driver
        return None
    low, high = _POSSIBLE
    return max(
        (
            float(sensor.current)
            for chip, sensors in found.items()
            if chip.lower().startswith(_CHIPS)
            for sensor in sensors
            if sensor.current is not None and low < sensor.current < high
        ),
        default=None,
    )


class LoadMeter:
    """How busy all processors are; for one thread. psutil's own meter keeps the last look of each thread apart."""

    def __init__(self) -> None:
        self._last = _times()
        self._load: float | None = None

    def look(self) -> float | None:
        """0 to 1, since the look before this one (or since this was made); None if that was only just."""
        now = busy, total = _times()
        last_busy, last_total = self._last
        if total - last_total >= _LEAST_SECONDS:
            self._last = now
            self._load = min(1.0, max(0.0, (busy - last_busy) / (total - last_total)))
        elif total < last_total:  # the clocks of a virtual machine may go back
            self._last = now
        return self._load


def _times() -> tuple[float, float]:
    """Seconds in which processors have worked, and all their seconds."""
    times = psutil.cpu_times()._asdict()
    # Linux counts what guests of virtual machines take twice
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total - times.get("idle", 0.0) - times.get("iowait", 0.0), total
