"""An answer on its way from the head into a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from time import monotonic

from shards.errors import EdgeAgentError
from tui.chat.conversation import Answer, Conversation, Seen
from tui.client.head_client import End, HeadClient, Piece


class Answering:
    """Takes an answer's pieces in. It goes on while another conversation is on the screen.

    Args:
        conversation: Whose last question is answered.
        answer: What is filled.
        changed: Called when more is there, and when it ends.
    """

    def __init__(self, conversation: Conversation, answer: Answer, changed: Callable[[Answering], None]) -> None:
        self.conversation, self.answer = conversation, answer
        self.pieces = 0
        self.began = monotonic()
        self.first_piece: float | None = None
        """When that came."""
        self._changed = changed
        self._new: list[str] = []

    @property
    def is_running(self) -> bool:
        """More may come."""
        return self.answer.state == "running"

    @property
    def rate(self) -> float | None:
        """Pieces a second since the first, once that means something; a piece is about a token."""
        if self.first_piece is None or self.pieces < 3:
            return None
        return (self.pieces - 1) / max(monotonic() - self.first_piece, 1e-3)

    @property
    def _seen(self) -> Seen | None:
        if self.first_piece is None:
            return None
        return Seen(
            pieces=self.pieces, first_piece_ms=1e3 * (self.first_piece - self.began), pieces_per_second=self.rate
        )

    def take_new(self) -> None:
        """Put what came into the answer: at the rate at which tokens come, doing so for each is too much."""
        if self._new:
            self.answer.add("".join(self._new))
            self._new.clear()

    def stop(self) -> None:
        """The user wants no more of it; `run` is to be cancelled too."""
        if self.is_running:
            self.take_new()
            self.answer.stop(self._seen)
            self._changed(self)

    async def run(self, client: HeadClient) -> None:
        """Ask, and take in what comes, until it ends. Cancel this to stop the answer. The text is never lost."""
        try:
            pieces = client.chat(self.conversation.messages(), self.conversation.settings.as_request())
            async with aclosing(pieces):
                async for item in pieces:
                    self._take(item)
            self._break_off("the head ended it without saying why")
        except asyncio.CancelledError:
            self.stop()
            raise
        except EdgeAgentError as error:
            self._break_off(str(error))
        except Exception as error:  # whatever it is, the text is not lost
            self._break_off(f"{type(error).__name__}: {error}")

    def _break_off(self, error: str) -> None:
        if self.is_running:
            self.take_new()
            self.answer.break_off(error, self._seen)
            self._changed(self)

    def _take(self, item: Piece | End) -> None:
        if isinstance(item, End):
            self.take_new()
            self.answer.finish(item)
            self._changed(self)
            return
        if self.first_piece is None:
            self.first_piece = monotonic()
        self.pieces += 1
        self._new.append(item.text)
        self._changed(self)
