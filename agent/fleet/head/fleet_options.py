"""How `serve` runs a fleet."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from agent.address import DEFAULT_CONTROL_PORT
from agent.fleet.head.draft_node import AUTO
from agent.fleet.node.node_settings import NodeSettings
from pipeline.planning.plan import Wish


class FleetOptions(BaseModel):
    """What is planned for, and what this PC gives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wish: Wish = Wish()
    min_nodes: int = Field(1, gt=0, description="nodes there must be before the first plan, this PC's own included")
    port: int = Field(DEFAULT_CONTROL_PORT, ge=0, le=65535, description="where nodes connect, if it is free")
    interface: str = Field("*", description="what to listen on for nodes: `*`, or loopback if all are on this PC")
    announced: bool = Field(True, description="nodes of the network can find the head by themselves")
    node: NodeSettings = NodeSettings()
    draft_node: str = Field(
        AUTO, min_length=1, description="where a draft model runs: auto, head, or a node's name or key"
    )
