"""The keys that our own widgets have, for the help page and the command palette."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.widget import Widget

_OURS = "tui."


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a widget of ours."""

    node: DOMNode
    binding: Binding

    @property
    def what(self) -> str:
        """What it does, at more length than the footer has room for."""
        return self.binding.tooltip or self.binding.description


def own_keys(node: DOMNode) -> Iterator[Key]:
    """Those that a node's class of ours brings, not those of the widget it is made from."""
    for kind in type(node).__mro__:
        if kind.__module__.startswith(_OURS):
            for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", ())):
                if binding.description and not binding.system:
                    yield Key(node, binding)


def keys_of(pane: Widget) -> list[Key]:
    """Those of a pane and of what is in it, each thing once."""
    return _once(key for node in (pane, *pane.walk_children(Widget)) for key in own_keys(node))


def display(app: App[Any], keys: Iterable[Key]) -> tuple[tuple[str, str], ...]:
    """As shown, and what each does; several keys that do the same are in one line."""
    shown: dict[str, list[str]] = {}
    for key in keys:
        name = app.get_key_display(key.binding)
        if name not in shown.setdefault(key.what, []):
            shown[key.what].append(name)
    return tuple((" ".join(names), description) for description, names in shown.items())


def _once(keys: Iterable[Key]) -> list[Key]:
    seen: dict[tuple[str, str], Key] = {}
    for key in keys:
        seen.setdefault((key.binding.key, key.what), key)
    return list(seen.values())
