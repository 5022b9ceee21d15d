"""Makes the stages of an agent slow: `python throttle.py PID SHARE` runs the children of a process a share of the time.

They are stopped and continued some hundred times a second, in turns shorter than a layer takes, so that everything they
do takes longer by the same factor. The agent itself is not slowed.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time

import psutil

_RUN_SECONDS = 1e-4
_LOOK_SECONDS = 0.05
"""How often new children are looked for."""


def main(pid: int, share: float) -> None:
    """Until the process is gone; what was stopped is continued at the end."""
    agent, children, look_at = psutil.Process(pid), [], 0.0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while agent.is_running():
            if (now := time.monotonic()) >= look_at:
                children, look_at = agent.children(), now + _LOOK_SECONDS
            began = time.perf_counter()
            _signal(children, signal.SIGCONT)
            time.sleep(_RUN_SECONDS)
            _signal(children, signal.SIGSTOP)
            time.sleep((time.perf_counter() - began) * (1 / share - 1))
    except psutil.NoSuchProcess:
        pass
    finally:
        _signal(children, signal.SIGCONT)


def _signal(children: list[psutil.Process], number: signal.Signals) -> None:
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(number)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
