"""What a node is doing, for whoever watches it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Activity(_Frozen):
    """Work that takes a while."""

    what: str = Field(description="with the rate, where it is a download")
    done: float
    total: float


class StageStatus(_Frozen):
    """A stage on this node."""

    model: str
    first_layer: int
    end_layer: int
    begins_after_attention: bool = False
    ends_after_attention: bool = False
    state: Literal["fetching", "loading", "ready", "serving"] = "fetching"
    activity: Activity | None = None


class NodeStatus(_Frozen):
    """A node at a moment."""

    state: Literal["looking", "waiting", "joined", "out"] = Field(
        "looking", description="for its head; for approval; in the fleet; refused by the head, for good"
    )
    fleet: str | None = None
    name: str = Field(description="what the node is called; in a fleet: what it is called there")
    head: str | None = Field(None, description="address and port where the head was found")
    code: str | None = Field(None, description="while it waits for approval: the short code to compare")
    why: str | None = Field(None, description="it is not in")
    hint: str | None = Field(None, description="what a person can do about it")
    measuring: Activity | None = None
    stages: tuple[StageStatus, ...] = ()
