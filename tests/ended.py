"""Whether processes have ended, also those of others: an orphan that has may stay a zombie until init looks at it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Whether nothing of it runs any more."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_alive(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after so long."""
    end = time.monotonic() + seconds
    alive = [process for process in processes if not has_ended(process)]
    while alive and time.monotonic() < end:
        time.sleep(0.02)
        alive = [process for process in alive if not has_ended(process)]
    return alive
