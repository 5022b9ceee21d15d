"""Asks for the API key of a head."""

from __future__ import annotations

from tui.client.address import short
from tui.dialogs.text_input import TextInputDialog


class KeyDialog(TextInputDialog):
    """Asks for a key; answers it, or None. The key is kept in memory alone.

    Args:
        url: Whose key.
        why: What the head says.
    """

    def __init__(self, url: str, why: str = "") -> None:
        text = f"{why}\nIt is kept until this screen ends. Next time: --api-key-file FILE.".strip()
        super().__init__(f"API key of {short(url)}", text, done="Use it", check=wrong_with, secret=True)


def wrong_with(key: str) -> str | None:
    """What keeps a text from being a key; None: nothing."""
    if not key:
        return "Type or paste the key."
    if not key.isascii() or not key.isprintable() or " " in key:
        return "A key is one word of ASCII letters, digits and signs."
    return None
