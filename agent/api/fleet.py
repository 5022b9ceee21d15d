"""POST /fleet/approve, /fleet/forget and /fleet/renew-token, GET /fleet/plan: looking after a fleet.

These want the API key of the user who runs the head even on loopback, where every local user can knock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, ConfigDict, Field

from agent.api.errors import ApiError
from agent.api.guard import bears

if TYPE_CHECKING:
    from agent.served import FleetControl


class Code(BaseModel):
    """Which pending node."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=64)


class NodeName(BaseModel):
    """Which node."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(max_length=64)


class FleetApi:
    """The endpoints that change the fleet.

    Args:
        fleet: The fleet.
        key: The key that they want.
    """

    def __init__(self, fleet: FleetControl, key: str) -> None:
        self._fleet, self._key = fleet, key
        self.router = APIRouter(dependencies=[Depends(self._check)])
        self.router.post("/fleet/approve", response_model=None)(self.approve)
        self.router.post("/fleet/forget", response_model=None)(self.forget)
        self.router.post("/fleet/renew-token", response_model=None)(self.renew_token)
        self.router.get("/fleet/plan", response_model=None)(self.plan)

    async def approve(self, body: Code) -> dict[str, Any]:
        """Let a pending node in."""
        return {"node": await asyncio.to_thread(self._fleet.approve, body.code)}

    async def forget(self, body: NodeName) -> dict[str, Any]:
        """Shut a node out."""
        return {"node": await asyncio.to_thread(self._fleet.forget, body.node)}

    async def renew_token(self) -> dict[str, Any]:
        """Make a new token; it is in the settings of the user who runs the head, not in the answer."""
        await asyncio.to_thread(self._fleet.renew_token)
        return {}

    async def plan(
        self,
        users: Annotated[int | None, Query(ge=1, le=1024)] = None,
        context: Annotated[int | None, Query(ge=1)] = None,
        stages: Annotated[int | None, Query(ge=1)] = None,
        replicas: bool | None = None,
    ) -> dict[str, Any]:
        """What would be planned now; what is not given is as the fleet runs."""
        changes = {"users": users, "context": context, "stages": stages, "replicas": replicas}
        given = {name: value for name, value in changes.items() if value is not None}
        return await asyncio.to_thread(self._fleet.plan, given)

    async def _check(self, authorization: Annotated[str, Header()] = "") -> None:
        if not bears(authorization, self._key.encode()):
            raise ApiError(
                401,
                "looking after the fleet wants the API key of the user who runs the head: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def without_fleet() -> APIRouter:
    """The same endpoints where there is no fleet to look after."""
    router = APIRouter()

    @router.api_route("/fleet/{what}", methods=["GET", "POST"], response_model=None)
    async def refuse(what: str) -> None:
        message = "the model is served by this PC alone: serve it without --local-stages to have a fleet"
        raise ApiError(404, message, code="no_fleet")

    return router
