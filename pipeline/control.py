"""What an agent and its stage process say to each other: JSON lines over the process's own pipes.

The order: start; progress...; ready or failed; connect; bound; to the tail of several stages echo, and its echoing;
warnings..., cancels... and records...; stop. Or: measure; progress...; measured or
failed. End of input means the agent is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pipeline.link import KeyPair, Peer
from pipeline.payload import PayloadKind
from pipeline.wire import Limits
from shards.errors import EdgeAgentError, StageError
from shards.profile import CostProfile
from shards.runtime import RuntimeFacts, StageConfig


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Start(_Message):
    """Load these layers."""

    kind: Literal["start"] = "start"
    config: StageConfig
    cache: Path | None = Field(None, description="folder for what tuning finds")


class Measure(_Message):
    """Find out what the parts of a model cost in stages like this one, and end."""

    kind: Literal["measure"] = "measure"
    config: StageConfig
    cache: Path | None = Field(None, description="folder for what tuning finds")


class Connect(_Message):
    """Take your place in the chain: listen for `welcome`, send to `next`, and work."""

    kind: Literal["connect"] = "connect"
    index: int = Field(ge=0, description="place in the chain, from 0")
    keys: KeyPair
    interface: str = Field(description="address to listen on; `*` is every one")
    welcome: str = Field(description="public key of the end that sends to this stage")
    next: Peer
    echo_from: str | None = Field(None, description="to the first of several stages: public key of the tail")
    limits: Limits
    sends: PayloadKind = Field(description="how hidden states leave; without meaning on the tail")


class Echo(_Message):
    """To the tail: send what is sampled to the first stage too."""

    kind: Literal["echo"] = "echo"
    first: Peer


class Cancel(_Message):
    """Rows of guesses need not be computed any more: of each sequence those of a branch, and of the branches before."""

    kind: Literal["cancel"] = "cancel"
    branches: dict[int, int]


class Record(_Message):
    """To a tail that was loaded to capture: send hidden states with the tokens from now on, or no more."""

    kind: Literal["record"] = "record"
    on: bool


class Stop(_Message):
    """Finish the step at hand and end."""

    kind: Literal["stop"] = "stop"


class Progress(_Message):
    """Loading goes on."""

    kind: Literal["progress"] = "progress"
    what: str
    done: float
    total: float


class Ready(_Message):
    """The layers are loaded."""

    kind: Literal["ready"] = "ready"
    facts: RuntimeFacts


class Measured(_Message):
    """What the parts cost; the process ends."""

    kind: Literal["measured"] = "measured"
    profile: CostProfile


class Bound(_Message):
    """The stage listens at this port, and at another for the tail's results."""

    kind: Literal["bound"] = "bound"
    port: int = Field(ge=1, le=65535)
    echo_port: int | None = Field(None, ge=1, le=65535)


class Echoing(_Message):
    """The tail has what Echo says."""

    kind: Literal["echoing"] = "echoing"


class Warned(_Message):
    """Something was dropped; the stage works on."""

    kind: Literal["warned"] = "warned"
    text: str


class Failed(_Message):
    """The stage cannot go on; the process ends."""

    kind: Literal["failed"] = "failed"
    what: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """The message for an error."""
        if isinstance(error, EdgeAgentError):
            return cls(what=error.what, where=error.where, hint=error.hint)
        return cls(what=f"{type(error).__name__}: {error}", hint="This is a defect of edge-agent; please report it.")

    def error(self, stage: str) -> StageError:
        """The error for a message of the named stage."""
        return StageError(self.what, where=f"{stage}: {self.where}" if self.where else stage, hint=self.hint)


ToStage = Start | Measure | Connect | Echo | Cancel | Record | Stop
FromStage = Progress | Ready | Measured | Bound | Echoing | Warned | Failed

_TO_STAGE: TypeAdapter[ToStage] = TypeAdapter(Annotated[ToStage, Field(discriminator="kind")])
_FROM_STAGE: TypeAdapter[FromStage] = TypeAdapter(Annotated[FromStage, Field(discriminator="kind")])


def line(message: ToStage | FromStage) -> str:
    """A message as a line of text, with its end."""
    return message.model_dump_json() + "\n"


def to_stage(text: str) -> ToStage:
    """Read a line from the agent; raises pydantic's ValidationError."""
    return _TO_STAGE.validate_json(text)


def from_stage(text: str) -> FromStage:
    """Read a line from a stage process; raises pydantic's ValidationError."""
    return _FROM_STAGE.validate_json(text)
