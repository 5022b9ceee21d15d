"""POST /fleet/cancel: ending somebody's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from agent.api.errors import ApiError
from agent.api.guard import owner_only

if TYPE_CHECKING:
    from agent.service import TextService


class RequestName(BaseModel):
    """Which request, by the id that GET /fleet shows."""

    model_config = ConfigDict(extra="forbid")

    request: str = Field(max_length=64)


class Requests:
    """The endpoint.

    Args:
        service: Has the answers made.
        key: The owner's key, which it wants; None: whoever may ask for answers may also end them.
    """

    def __init__(self, service: TextService, key: str | None) -> None:
        self._service = service
        self.router = APIRouter(dependencies=[Depends(owner_only(key))] if key is not None else [])
        self.router.post("/fleet/cancel", response_model=None)(self.cancel)

    async def cancel(self, body: RequestName) -> dict[str, str]:
        """End an answer; its client gets an error that says so."""
        if not self._service.cancel(body.request):
            message = f"no request {body.request!r} is in the works; it may have just ended"
            raise ApiError(404, message, param="request", code="request_not_found")
        return {"request": body.request}
