"""What a fleet is planned for: the wish of the moment, and the one that worked last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pipeline.planning.plan import Wish
from shards.errors import RequestError


class Wishes:
    """The wishes; any thread may change the current one, the planning thread settles them.

    Args:
        first: The first one; its context is cut to the model's, more would be room for nothing.
        context_length: Of the model.
    """

    def __init__(self, first: Wish, context_length: int) -> None:
        self._context_length = context_length
        fits = first.context <= context_length
        self.current = first if fits else first.model_copy(update={"context": context_length})
        self.settled = self.current
        """The one that chains were opened for last."""
        self._lock = threading.Lock()

    def changed(self, changes: dict[str, Any]) -> Wish:
        """The current one with changes.

        Raises:
            RequestError: more context is asked for than the model has.
        """
        wish = self.current.model_copy(update=changes)
        if wish.context > self._context_length:
            raise RequestError(
                f"{wish.context} tokens are asked for, and the model's context is {self._context_length}",
                where="context",
                hint="Ask for less.",
            )
        return wish

    def change(self, changes: dict[str, Any], check: Callable[[Wish], object]) -> Wish:
        """Wish for something else from now on; what `check` raises leaves it as it is."""
        with self._lock:
            wish = self.changed(changes)
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
