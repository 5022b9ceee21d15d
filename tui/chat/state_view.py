"""The line under what is typed, and the head's count of tokens in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.timer import Timer
from textual.widgets import Static

from tui.chat.state_line import StateLine
from tui.client.errors import HeadError, RefusedError
from tui.client.head_client import HeadClient, Message
from tui.client.state import Model
from tui.client.watch import Connection

_PAUSE = 0.6
"""Seconds in which nothing changes, before the head is asked to count."""


class StateView(Static):
    """Model, tokens and head."""

    DEFAULT_CSS = """
    StateView { height: 1; padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.line = StateLine()
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        """Say what is known so far."""
        self._show()

    def show_connection(self, connection: Connection) -> None:
        """The head came, went, or wants a key."""
        self._show(connection=connection)

    def show_model(self, model: Model) -> None:
        """What is served."""
        if (model.name, model.context_length) != (self.line.model, self.line.context):
            self._show(model=model.name, context=model.context_length)

    def count(self, client: HeadClient | None, messages: Callable[[], Sequence[Message]], characters: int) -> None:
        """Show about how much a conversation is now, and exactly, once the head has counted it.

        Args:
            client: The head; None: it is not asked.
            messages: Gives the conversation, when the head is to count.
            characters: About so many are in it.
        """
        self._show(characters=characters, tokens=None if characters else 0, problem="")
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.workers.cancel_group(self, "count")
        if client is not None and characters and self.line.is_up:
            self._timer = self.set_timer(
                _PAUSE, lambda: self.run_worker(self._count(client, messages()), group="count", exclusive=True)
            )

    async def _count(self, client: HeadClient, messages: Sequence[Message]) -> None:
        try:
            self._show(tokens=await client.count(messages))
        except RefusedError as error:
            self._show(problem=str(error))
        except HeadError:
            return  # what is known of the head is told elsewhere; the estimate stays

    def _show(self, **changes: object) -> None:
        self.line = self.line.changed(**changes)
        self.update(self.line.content())
