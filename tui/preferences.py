"""What the screen remembers from one time to the next."""

from __future__ import annotations

import json
import threading
from pathlib import Path

_FILE = "screen.json"


class Preferences:
    """The chosen theme, and the head that was chosen last. A file that cannot be read or written is done without.

    Args:
        folder: Where the file is; made when there is something to remember.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._lock = threading.Lock()
        kept = self._read()
        self.theme: str | None = kept.get("theme")
        self.url: str | None = kept.get("url")

    def save(self) -> None:
        """Write the file, whole or not at all; from any thread."""
        with self._lock:
            partial = self._path.with_suffix(".partial")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial.write_text(json.dumps({"theme": self.theme, "url": self.url}), encoding="utf-8")
                partial.replace(self._path)
            except OSError:
                return

    def _read(self) -> dict[str, str]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(kept, dict):
            return {}
        return {name: value for name, value in kept.items() if isinstance(value, str)}
