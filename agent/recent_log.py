"""The last lines that this process has logged, for whoever looks into what it does."""

from __future__ import annotations

import logging
from collections import deque

LINES = 200
LONGEST_LINE = 500

_OURS = ("agent", "exporters", "pipeline", "shards")


class RecentLog(logging.Handler):
    """Keeps the newest lines, each cut to a length; from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._lines: deque[str] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a record; a traceback is further lines."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        self._lines.extend(line[:LONGEST_LINE] for line in text.splitlines()[-LINES:])

    def lines(self) -> tuple[str, ...]:
        """What is kept, oldest first."""
        return tuple(self._lines.copy())


_RECENT = RecentLog()


def keep() -> None:
    """Begin to keep what this process logs, from our own modules also what is no warning."""
    root = logging.getLogger()
    if _RECENT in root.handlers:
        return
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)  # it prints warnings, but by itself only where there is no other handler
    root.addHandler(_RECENT)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)


def lines() -> tuple[str, ...]:
    """The last lines, oldest first; none before `keep`."""
    return _RECENT.lines()
