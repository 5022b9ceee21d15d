"""What a fleet is planned for: the wish of the moment, and the one that worked last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pipeline.planning.plan import Wish


class Wishes:
    """The wishes; any thread may change the current one, the planning thread settles them."""

    def __init__(self, first: Wish) -> None:
        self.current = first
        self.settled = first
        """The one that chains were opened for last."""
        self._lock = threading.Lock()

    def change(self, changes: dict[str, Any], check: Callable[[Wish], object]) -> Wish:
        """Wish for something else from now on; what `check` raises leaves it as it is."""
        with self._lock:
            wish = self.current.model_copy(update=changes)
            check(wish)
            self.current = wish
        return wish

    def take_back(self, wish: Wish) -> bool:
        """Go back from a wish to the one that worked, unless it is that, or another has come meanwhile.

        Returns:
            Whether there is another to plan for now.
        """
        with self._lock:
            if self.current is wish:
                self.current = self.settled
            return self.current is not wish


def words(wish: Wish) -> str:
    """A wish in a line."""
    parts = [f"{wish.users} user{'s' * (wish.users > 1)} with {wish.context} tokens each"]
    parts += [f"{wish.stages} stage{'s' * (wish.stages > 1)} a copy"] if wish.stages else []
    parts += [] if wish.replicas else ["one copy"]
    return ", ".join(parts)
