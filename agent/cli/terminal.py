"""A screen ends with its terminal: a window that is closed, or a connection that breaks, leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_LOOK_SECONDS = 1.0


def end_with_terminal() -> None:
    """From now on this process gets a SIGTERM when the terminal it reads from is gone.

    A process that the terminal does not control hears nothing of that, and would go on to read its end for ever.
    On Windows a console ends its processes itself.
    """
    if sys.platform != "win32" and sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="terminal", daemon=True).start()


def _watch(terminal: int) -> None:
    if sys.platform == "win32":
        return
    import termios

    while True:
        time.sleep(_LOOK_SECONDS)
        try:
            termios.tcgetattr(terminal)
        except (termios.error, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            return
