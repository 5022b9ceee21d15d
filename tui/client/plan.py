"""What GET /fleet/plan and GET /fleet/nodes/NAME say, typed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tui.client.state import Node


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Prediction(_State):
    """What a plan promises: tokens a second, and milliseconds."""

    one_user: float
    users: int
    many_users: float
    first_token_ms: float


class PlannedStage(_State):
    """Layers [first_layer, end_layer) on a node, the first and the last perhaps in part; memory in bytes."""

    node: str
    first_layer: int
    end_layer: int
    begins_after_attention: bool = False
    ends_after_attention: bool = False
    memory: int

    @property
    def begin(self) -> float:
        """Where it begins; a half is behind a layer's attention."""
        return self.first_layer + 0.5 * self.begins_after_attention

    @property
    def end(self) -> float:
        """Where it ends."""
        return self.end_layer - 0.5 * self.ends_after_attention


class PlannedChain(_State):
    """A copy of the model."""

    stages: tuple[PlannedStage, ...]
    users: int
    kv_tokens: int
    prediction: Prediction


class LeftOut(_State):
    """A node that would carry nothing, and why."""

    node: str
    reason: str
    prediction_with: Prediction | None = None


class Plan(_State):
    """Chains over nodes."""

    chains: tuple[PlannedChain, ...]
    prediction: Prediction
    left_out: tuple[LeftOut, ...] = ()
    without: dict[str, Prediction | None] = {}


class Wish(_State):
    """What is planned for."""

    users: int = 4
    context: int = 4096
    stages: int | None = None
    replicas: bool = True


class Preview(_State):
    """What would be planned now."""

    wish: Wish
    nodes: dict[str, str] = Field({}, description="names by key")
    unmeasured: tuple[str, ...] = Field((), description="names of nodes that cannot be planned with yet")
    plan: Plan
    current: float | None = Field(
        None, description="tokens a second of all users that the chains at work are predicted to give now, same wish"
    )
    is_current: bool = Field(False, description="the chains at work are those of the plan")


class Check(_State):
    """A line of the doctor."""

    topic: str
    status: Literal["ok", "warning", "fault"]
    what: str
    next_step: str | None = None


class NodeDetail(_State):
    """All there is to know of a node. What the node itself could not be asked is empty, and `problem` says why."""

    node: Node
    milliseconds: dict[str, tuple[float, ...]] | None = Field(
        None, description="measured with this model: `rows`, and for each of them `layer` and `head`"
    )
    log: tuple[str, ...] = Field((), description="the last lines of its log, oldest first")
    checks: tuple[Check, ...] = Field((), description="of its doctor")
    problem: str | None = None
