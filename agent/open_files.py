"""How many files and connections this process may have open at a time."""

from __future__ import annotations

import sys
from contextlib import suppress

MOST = 2**16
"""More than strangers can hold open at a head's ports in the seconds that a handshake may take."""


def allow_many() -> None:
    """Raise this process's limit as far as the system lets it, up to `MOST`.

    Linux gives 1024 unless asked. Where they are used up ZeroMQ tries again and again to accept the next connection,
    at the cost of a processor, and nobody else is heard.
    """
    if sys.platform == "win32":
        return  # has no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MOST if hard == unlimited else min(MOST, hard)
    if soft != unlimited and soft < wanted:
        with suppress(OSError, ValueError):  # as it was is enough for a fleet among friends
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
