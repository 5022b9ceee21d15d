"""Ctrl-C, SIGTERM, a closed terminal: the work in hand cleans up after itself; if it can't in time, it is ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""As a shell counts them."""
if sys.platform != "win32":
    EXIT_CODES[signal.SIGHUP] = 129

_GRACE_SECONDS = 4.0
_signalled: int | None = None
"""The signal that came first."""
_notifier: socket.socket | None = None


def install() -> None:
    """From now on SIGTERM and SIGHUP unwind like Ctrl-C does, and each ends the process within a few seconds.

    Python runs signal handlers between its own instructions, and loading a model is one long instruction. So a thread
    hears of the signal as well; when its patience is over, it ends our child processes and this one.
    """
    global _notifier
    listener, _notifier = socket.socketpair()
    _notifier.setblocking(False)
    for number in EXIT_CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _unwind)
    signal.set_wakeup_fd(_notifier.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(listener,), name="interruption", daemon=True).start()


def exit_code() -> int | None:
    """The exit code of a process that has been interrupted; None if it has not been."""
    return None if _signalled is None else EXIT_CODES[signal.Signals(_signalled)]


def _unwind(number: int, frame: FrameType | None) -> None:
    """Unwind once: a second Ctrl-C must not interrupt the cleaning up."""
    global _signalled
    if _signalled is None:
        _signalled = number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_CODES[signal.Signals(number)])


def _watch(listener: socket.socket) -> None:
    """A daemon thread: it never gets to its end where the main thread does."""
    code = None
    while code is None:
        code = EXIT_CODES.get(signal.Signals(listener.recv(1)[0]))
    time.sleep(_GRACE_SECONDS)
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(code)
