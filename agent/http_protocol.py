"""HTTP as uvicorn speaks it, but strangers do not hold a connection by saying nothing, or half of it."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose next request does not come. One that is at work on a request is left alone."""

    request_seconds = 10.0
    """For the head of a request to arrive, from when it may first be expected; uvicorn waits for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        self._expect_request(self.request_seconds)

    def on_response_complete(self) -> None:
        """Another request may come, or stand here already."""
        self._expect_request(self.timeout_keep_alive + self.request_seconds)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect_request(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._give_up, self.cycle)

    def _give_up(self, last: object) -> None:
        """Close the connection if its last request is still the one it was."""
        if self.cycle is last:
            self.transport.close()
