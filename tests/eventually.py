"""Waiting for what comes about by itself."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(reached: Callable[[], object], seconds: float = 90.0) -> bool:
    """Whether it came about within this time."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
