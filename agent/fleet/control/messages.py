"""What a node and the head say to each other over the control socket: one JSON document a message.

A node begins with Hello; the head answers Welcome, or Refused and nothing more. Both send Heartbeat while they are
quiet otherwise. Everything else is the head's orders and the node's reports of them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.control import FromStage, ToStage
from shards.errors import EdgeAgentError, StageError, WireError
from shards.profile import CostProfile
from shards.runtime import EngineKind, EngineName, KvPrecision, Mode

PROTOCOL = 6
"""Version of these messages; both sides must have the same."""

MAX_BYTES = 4 * 2**20
"""Largest message; the socket refuses larger ones."""

MAX_BEHIND = 1000
"""Messages that the other side may be behind with reading; then it counts as gone."""

MOST_FINDINGS, MOST_LOG_LINES, LONGEST_TEXT = 100, 200, 1000
"""Of what a node says when it is examined; characters."""

MOST_ENGINES = 3

HEARTBEAT_SECONDS = 1.0
LOST_SECONDS = 5.0
"""Silence after which the other side counts as gone."""

Key = Annotated[str, Field(min_length=40, max_length=40)]
"""A public CURVE key as Z85 text. A node's key is its identity."""

Name = Annotated[str, Field(min_length=1, max_length=63)]
Port = Annotated[int, Field(ge=1, le=65535)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Versions(_Message):
    """What must fit, and what is good to know."""

    edge_agent: str
    protocol: int = PROTOCOL
    openvino: str
    python: str
    system: str


class Device(_Message):
    """A device OpenVINO sees."""

    name: str = Field(description="OpenVINO's, e.g. CPU, GPU.1")
    full_name: str
    memory: int | None = Field(None, description="bytes of its own memory; None: it uses the PC's")
    driver: str | None = None


class Hardware(_Message):
    """What a PC has."""

    processor: str
    cores: int
    memory: int = Field(description="bytes")
    devices: tuple[Device, ...]
    is_laptop: bool = Field(description="has a battery")


class Condition(_Message):
    """How a PC is doing."""

    memory_free: int
    memory_allowed: int = Field(description="bytes its stages may take, all together")
    disk_free: int
    battery: float | None = Field(None, ge=0, le=1, description="0 to 1; None: no battery")
    on_mains: bool = True
    temperature: float | None = Field(
        None,
        gt=-100,
        lt=1000,
        description="degrees Celsius, of the hottest sensor of processor or GPU; None: none tells",
    )
    load: float | None = Field(None, ge=0, le=1, description="0 to 1, of all processors together; None: not known yet")


class Hello(_Message):
    """A node presents itself."""

    kind: Literal["hello"] = "hello"
    name: Name
    instance: str = Field(max_length=64, description="new for every process: tells a cloned identity from a restart")
    versions: Versions
    hardware: Hardware
    condition: Condition
    device: str = Field("AUTO", description="device the user wants to give")
    engines: tuple[EngineKind, ...] = Field(
        ("openvino",),
        min_length=1,
        max_length=MOST_ENGINES,
        description="what is installed, as far as the user wants to give it",
    )
    addresses: tuple[str, ...] = Field(max_length=64, description="IP addresses the node has")
    bulk_port: Port


class Welcome(_Message):
    """A node is in."""

    kind: Literal["welcome"] = "welcome"
    fleet: Name
    name: Name = Field(description="what the node is called here: its own name, with a suffix where that was taken")


class Refused(_Message):
    """A node is not let in, although its key is known."""

    kind: Literal["refused"] = "refused"
    what: str
    hint: str | None = None
    final: bool = Field(True, description="False: it may work in a moment")


class Heartbeat(_Message):
    """Still here."""

    kind: Literal["heartbeat"] = "heartbeat"
    condition: Condition | None = Field(None, description="a node's, when it is time for it")


class Goodbye(_Message):
    """Leaving on purpose."""

    kind: Literal["goodbye"] = "goodbye"
    why: str


class Neighbour(_Message):
    """A node of the fleet, as others reach it. The head's own node is one of them."""

    id: Key
    name: Name
    addresses: tuple[str, ...] = Field(max_length=64)
    bulk_port: Port


class Directory(_Message):
    """All nodes of the fleet, sent whenever that changes."""

    kind: Literal["directory"] = "directory"
    nodes: tuple[Neighbour, ...]


class Traffic(_Message):
    """Whether tokens flow: while they do, weights are held back."""

    kind: Literal["traffic"] = "traffic"
    busy: bool


class ModelRef(_Message):
    """A package, and who has (parts of) it."""

    package_id: str
    name: str
    holders: tuple[Key, ...] = Field(description="nodes to fetch from, best first")


class MeasureModel(_Message):
    """Fetch what is needed for it and measure what the model's parts cost."""

    kind: Literal["measure-model"] = "measure-model"
    task: str
    model: ModelRef
    engines: tuple[EngineName, ...] = Field(min_length=1, max_length=MOST_ENGINES)
    mode: Mode
    kv_precision: KvPrecision | None = None
    device: str = Field(description="of OpenVINO")
    again: bool = Field(False, description="what was found earlier no longer fits")


class MeasureLinks(_Message):
    """Measure the way to other nodes."""

    kind: Literal["measure-links"] = "measure-links"
    task: str
    peers: tuple[Key, ...]


class Examine(_Message):
    """Look what could keep the PC from being a good node, and at the last lines of its log."""

    kind: Literal["examine"] = "examine"
    task: str


class Finding(_Message):
    """What the doctor says of one thing."""

    topic: str = Field(max_length=40)
    status: Literal["ok", "warning", "fault"]
    what: str = Field(max_length=LONGEST_TEXT)
    next_step: str | None = Field(None, max_length=LONGEST_TEXT)


class Examined(_Message):
    """What was found."""

    kind: Literal["examined"] = "examined"
    task: str
    checks: tuple[Finding, ...] = Field(max_length=MOST_FINDINGS)
    log: tuple[Annotated[str, Field(max_length=LONGEST_TEXT)], ...] = Field(
        max_length=MOST_LOG_LINES, description="oldest first"
    )


class ModelMeasured(_Message):
    """What the parts cost on each engine, and why some could not be measured."""

    kind: Literal["model-measured"] = "model-measured"
    task: str
    profiles: tuple[CostProfile, ...] = Field(min_length=1, max_length=MOST_ENGINES)
    failures: dict[EngineName, Annotated[str, Field(max_length=LONGEST_TEXT)]] = {}


class LinkMeasure(_Message):
    """The way to a peer; latency is half of a round trip's median."""

    peer: Key
    latency_ms: float = Field(ge=0, allow_inf_nan=False)
    bytes_per_second: float = Field(gt=0, allow_inf_nan=False)


class LinksMeasured(_Message):
    """What the ways are like; peers that could not be reached are missing."""

    kind: Literal["links-measured"] = "links-measured"
    task: str
    links: tuple[LinkMeasure, ...]


class OpenStage(_Message):
    """Fetch a stage's weights, start a process for it, and from then on carry what it and the head say.

    The first message to the stage is `start`, whose `package` is ignored: the node has its own copy.
    """

    kind: Literal["open-stage"] = "open-stage"
    stage: str
    model: ModelRef
    start: ToStage


class ToStageProcess(_Message):
    """For a stage process. The `host` of its peers is a node's key, or `head`."""

    kind: Literal["to-stage"] = "to-stage"
    stage: str
    message: ToStage


class CloseStage(_Message):
    """End a stage process, whatever it does."""

    kind: Literal["close-stage"] = "close-stage"
    stage: str


class FromStageProcess(_Message):
    """From a stage process, or of its beginnings (fetching is reported as its progress)."""

    kind: Literal["from-stage"] = "from-stage"
    stage: str
    message: FromStage


class TaskProgress(_Message):
    """A measurement goes on."""

    kind: Literal["task-progress"] = "task-progress"
    task: str
    what: str
    done: float = Field(allow_inf_nan=False)
    total: float = Field(allow_inf_nan=False)


class TaskFailed(_Message):
    """A measurement or an examination could not be made, or a stage has ended (`task` is its name then)."""

    kind: Literal["task-failed"] = "task-failed"
    task: str
    what: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, task: str, error: BaseException) -> TaskFailed:
        """The message for an error."""
        if isinstance(error, EdgeAgentError):
            return cls(task=task, what=error.what, where=error.where, hint=error.hint)
        return cls(task=task, what=f"{type(error).__name__}: {error}", hint="This is a defect: please report it.")

    def error(self, node: str) -> StageError:
        """The error on the head, which names the node."""
        where = f"{node}: {self.where[:LONGEST_TEXT]}" if self.where else node
        return StageError(self.what[:LONGEST_TEXT], where=where, hint=self.hint and self.hint[:LONGEST_TEXT])


ToNode = (
    Welcome | Refused | Heartbeat | Goodbye | Directory | Traffic | Examine | MeasureModel | MeasureLinks | OpenStage
    | ToStageProcess | CloseStage
)  # fmt: skip
FromNode = (
    Hello | Heartbeat | Goodbye | Examined | ModelMeasured | LinksMeasured | FromStageProcess | TaskProgress
    | TaskFailed
)  # fmt: skip

_T = TypeVar("_T")
_TO_NODE: TypeAdapter[ToNode] = TypeAdapter(Annotated[ToNode, Field(discriminator="kind")])
_FROM_NODE: TypeAdapter[FromNode] = TypeAdapter(Annotated[FromNode, Field(discriminator="kind")])


def encode(message: ToNode | FromNode) -> bytes:
    """A message as it travels."""
    return message.model_dump_json().encode()


def to_node(data: bytes) -> ToNode:
    """Read a message from the head; raises WireError."""
    return _read(_TO_NODE, data)


def from_node(data: bytes) -> FromNode:
    """Read a message from a node; raises WireError."""
    return _read(_FROM_NODE, data)


def _read(kind: TypeAdapter[_T], data: bytes) -> _T:
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise WireError(f"a control message is not as agreed: {field}: {first['msg']}", where="control") from None
