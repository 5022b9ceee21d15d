"""POST /capture: a recording, sent as it is made. It wants the owner's key even on loopback: it is what others ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from agent.api.errors import ApiError
from agent.api.guard import owner_only
from agent.capture.recording import Recording
from agent.capture.tap import CaptureTap

_LOOK_SECONDS = 0.1
"""How often what was recorded is sent on."""


class Wanted(BaseModel):
    """How much to record."""

    model_config = ConfigDict(extra="forbid")

    megabytes: float = Field(gt=0, le=1e6)
    minutes: float = Field(gt=0, le=7 * 24 * 60)


class CaptureApi:
    """The endpoint.

    Args:
        tap: Records.
        key: The owner's key.
    """

    def __init__(self, tap: CaptureTap, key: str) -> None:
        self._tap, self._is_closing = tap, False
        self.router = APIRouter(dependencies=[Depends(owner_only(key))])
        self.router.post("/capture", response_model=None)(self.capture)

    async def capture(self, body: Wanted) -> StreamingResponse:
        """Record until it is enough, or the client leaves; see agent/capture/records.py for what comes."""
        recording = self._tap.start(max_bytes=int(1e6 * body.megabytes), seconds=60 * body.minutes)
        if recording is None:
            raise ApiError(409, "somebody records already; it can be done once at a time", code="capture_runs")
        return StreamingResponse(self._send(recording), media_type="application/octet-stream")

    async def _send(self, recording: Recording) -> AsyncIterator[bytes]:
        try:
            yield recording.take()
            while recording.over is None and not self._is_closing:
                await asyncio.sleep(_LOOK_SECONDS)
                self._tap.tell()
                if packed := await asyncio.to_thread(recording.take):
                    yield packed
        finally:
            self._tap.stop(recording)
        yield recording.end()

    def close(self) -> None:
        """End the recording; the server does."""
        self._is_closing = True


def without_capture() -> APIRouter:
    """The endpoint of a server that was not started to record."""
    router = APIRouter()

    @router.post("/capture", response_model=None)
    async def refuse() -> None:
        raise ApiError(404, "this server does not record: start it with --capture", code="no_capture")

    return router
