"""The line under what is typed: the model, how much of its context the conversation takes, and the head. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from textual.content import Content

from tui.chat.block import MUTED
from tui.client.plain import one_line
from tui.client.watch import Connection

_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class StateLine:
    """What it says.

    Attributes:
        model: The served model's name; empty: unknown.
        context: Its context length in tokens.
        characters: Of the conversation with what is being typed.
        tokens: As the head counted them; None: it has not yet.
        connection: Whether the head is there.
        problem: Why the head does not count.
    """

    model: str = ""
    context: int | None = None
    characters: int = 0
    tokens: int | None = None
    connection: Connection | None = None
    problem: str = ""

    @property
    def is_up(self) -> bool:
        """The head answers."""
        return self.connection is not None and self.connection.state == "up"

    def changed(self, **changes: object) -> StateLine:
        """The same with some things changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def content(self) -> Content:
        """As it is drawn."""
        parts: list[tuple[str, str]] = []
        if words := _words(self.connection):
            parts.append((words, "bold $text-warning"))
        if self.model:
            parts.append((one_line(self.model, 40), MUTED))
        count = f"{self.tokens:,}" if self.tokens is not None else f"~{-(-self.characters // _CHARACTERS_A_TOKEN):,}"
        if self.context is None:
            parts.append((f"{count} tokens", MUTED))
        elif self.tokens is not None and self.tokens >= self.context:
            parts.append((f"▲ too long: {count} of {self.context:,} tokens", "bold $text-error"))
        else:
            parts.append((f"{count} of {self.context:,} tokens", MUTED))
        if self.problem:
            parts.append((one_line(self.problem, 100), "$text-warning"))
        content = Content("")
        for number, (text, style) in enumerate(parts):
            content += Content.styled(" · " if number else "", MUTED) + Content.styled(text, style)
        return content


def _words(connection: Connection | None) -> str:
    match connection.state if connection is not None else "looking":
        case "up":
            return ""
        case "looking" | "none":
            return "○ no head yet"
        case "locked":
            return "▲ the head wants a key"
        case _:
            return "✖ the head does not answer"


def why_not(connection: Connection | None) -> str | None:
    """Why nothing can be sent now; None: it can."""
    if connection is None or connection.state in ("looking", "none"):
        return "Not sent: there is no head yet. Your text stays here; ctrl+k connects to a head."
    why = one_line(connection.why, 200)
    why = f" ({why})" if why else ""
    if connection.state == "gone":
        where = f" at {one_line(connection.url, 60)}" if connection.url else ""
        return f"Not sent: the head{where} does not answer{why}. Your text stays here; press enter when it is back."
    if connection.state == "locked":
        return f"Not sent: the head wants an API key{why}. Your text stays here."
    return None
