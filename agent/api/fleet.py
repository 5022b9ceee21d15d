"""Looking after a fleet: whom to let in and shut out, what to plan for, a node in detail.

These endpoints want the API key of the user who runs the head even on loopback, where every local user can knock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from agent.api.errors import ApiError
from agent.api.guard import owner_only
from shards.errors import EdgeAgentError, RequestError

if TYPE_CHECKING:
    from agent.served import FleetControl

NODE_SECONDS = 20.0
"""The longest that a node may take to examine itself."""

_MOST_USERS = 1024
_MOST_CONTEXT = 2**30


class Code(BaseModel):
    """Which pending node."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=64)


class NodeName(BaseModel):
    """Which node."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(max_length=64)


class WishChanges(BaseModel):
    """What to plan for; what is not given stays as it is."""

    model_config = ConfigDict(extra="forbid")

    users: int | None = Field(None, ge=1, le=_MOST_USERS)
    context: int | None = Field(None, ge=1, le=_MOST_CONTEXT)
    stages: int | None = Field(None, ge=0, description="of each copy of the model; 0: as many as are best")
    replicas: bool | None = None

    def given(self) -> dict[str, Any]:
        """Changes to a wish."""
        given = self.model_dump(exclude_none=True)
        return given | ({"stages": None} if given.get("stages") == 0 else {})


class FleetApi:
    """The endpoints.

    Args:
        fleet: The fleet.
        key: The key that they want.
    """

    def __init__(self, fleet: FleetControl, key: str) -> None:
        self._fleet = fleet
        self._planning = asyncio.Semaphore()
        """A plan takes up to a second or so, and there are few threads: /healthz must not wait for one behind plans."""
        self.router = APIRouter(dependencies=[Depends(owner_only(key))])
        self.router.post("/fleet/approve", response_model=None)(self.approve)
        self.router.post("/fleet/refuse", response_model=None)(self.refuse)
        self.router.post("/fleet/forget", response_model=None)(self.forget)
        self.router.post("/fleet/renew-token", response_model=None)(self.renew_token)
        self.router.get("/fleet/plan", response_model=None)(self.plan)
        self.router.post("/fleet/apply", response_model=None)(self.apply)
        self.router.get("/fleet/nodes/{name:path}", response_model=None)(self.node)

    async def approve(self, body: Code) -> dict[str, Any]:
        """Let a pending node in."""
        return {"node": await asyncio.to_thread(self._fleet.approve, body.code)}

    async def refuse(self, body: Code) -> dict[str, Any]:
        """Do not list a pending node any more."""
        return {"node": await asyncio.to_thread(self._fleet.refuse, body.code)}

    async def forget(self, body: NodeName) -> dict[str, Any]:
        """Shut a node out."""
        return {"node": await asyncio.to_thread(self._fleet.forget, body.node)}

    async def renew_token(self) -> dict[str, Any]:
        """Make a new token; it is in the settings of the user who runs the head, not in the answer."""
        await asyncio.to_thread(self._fleet.renew_token)
        return {}

    async def plan(self, changes: Annotated[WishChanges, Query()]) -> dict[str, Any]:
        """What would be planned now, and what the chains at work give."""
        async with self._planning:
            return await asyncio.to_thread(self._fleet.plan, changes.given())

    async def apply(self, body: WishChanges) -> dict[str, Any]:
        """Plan for this from now on."""
        async with self._planning:
            return {"wish": await asyncio.to_thread(self._fleet.apply, body.given())}

    async def node(self, name: str) -> dict[str, Any]:
        """All there is to know of a node; what it cannot be asked is left empty, with the reason."""
        try:
            known, asked = await asyncio.to_thread(self._fleet.node, name)
        except RequestError as error:
            raise ApiError(404, str(error), param="node", code="node_not_found") from None
        try:
            said = await asyncio.wait_for(asyncio.wrap_future(asked), NODE_SECONDS)
        except TimeoutError:
            return known | {"log": [], "checks": [], "problem": f"the node has not answered within {NODE_SECONDS:g} s"}
        except EdgeAgentError as error:
            return known | {"log": [], "checks": [], "problem": str(error)}
        return known | said.model_dump(include={"log", "checks"}) | {"problem": None}


def without_fleet() -> APIRouter:
    """The same endpoints where there is no fleet to look after."""
    router = APIRouter()

    @router.api_route("/fleet/{what:path}", methods=["GET", "POST"], response_model=None)
    async def refuse(what: str) -> None:
        message = "the model is served by this PC alone: serve it without --local-stages to have a fleet"
        raise ApiError(404, message, code="no_fleet")

    return router
