"""The command palette: everything that a key does, and what has no key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.types import IgnoreReturnCallbackType

from tui.keys import keys_of, own_keys
from tui.panes import current_pane


class KeyCommands(Provider):
    """What the keys of the visible tab and of the app do; nothing while a dialog is open: it is answered first."""

    async def discover(self) -> Hits:
        """All of them."""
        for name, key, command in self._commands():
            yield DiscoveryHit(name, command, help=key)

    async def search(self, query: str) -> Hits:
        """Those that match."""
        matcher = self.matcher(query)
        for name, key, command in self._commands():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), command, text=name, help=key)

    def _commands(self) -> Iterator[tuple[str, str, IgnoreReturnCallbackType]]:
        """Name, key, and what to call."""
        if self.screen.is_modal:
            return
        pane = current_pane(self.screen)
        seen: set[str] = set()
        for key in (*(keys_of(pane) if pane else ()), *own_keys(self.app)):
            if key.what not in seen:
                seen.add(key.what)
                command = partial(self.app.run_action, key.binding.action, key.node)
                yield key.what, self.app.get_key_display(key.binding), command
