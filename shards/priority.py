"""What a process is worth to the operating system."""

from __future__ import annotations

import sys

import psutil


def step_back() -> None:
    """Leave the processors to other processes whenever these want them.

    On Linux this is true of the calling thread and those it starts from now on.
    """
    psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)
