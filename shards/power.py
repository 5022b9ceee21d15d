"""Mains or battery."""

from __future__ import annotations

from typing import Any

import psutil


def battery() -> Any:
    """psutil's view of the battery: `percent`, `power_plugged`; None if there is none, or nobody can tell."""
    sensors = getattr(psutil, "sensors_battery", None)  # not on every system
    return sensors() if sensors else None


def on_mains(seen: Any) -> bool:
    """Whether a computer with this battery, or with none, is plugged in; so it is where nobody can tell."""
    return seen is None or seen.power_plugged is not False


def is_on_battery() -> bool:
    """Whether this computer runs on its battery now."""
    return not on_mains(battery())
