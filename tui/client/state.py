"""What GET /fleet says, typed. Fields that this version does not know are skipped, those it lacks have a default."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tui.layers import Edge


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Model(_State):
    """What is served."""

    name: str
    package_id: str = ""
    layers: int
    context_length: int
    weights: str = Field("", description="how they are compressed, e.g. int4")


class StageTimes(_State):
    """Medians over the last steps, in microseconds."""

    wait: float = 0.0
    compute: float = 0.0
    send: float = 0.0
    queued: float = 0.0


class Stage(_State):
    """Consecutive layers on a node."""

    layers: tuple[Edge, Edge] = Field(description="first, and end (exclusive)")
    engine: str = ""
    device: str = ""
    node: str = Field("", description="the node's key; without a fleet an address")
    kv_tokens: int = 0
    microseconds: StageTimes | None = None
    use: float | None = Field(None, description="0 to 1: part of the last seconds in which it computed")
    sent_bytes: int = Field(0, description="hidden states (the tail: tokens) sent since the chain began")


class ChainTimes(_State):
    """Medians over the last steps, in microseconds."""

    wire: float = 0.0
    head: float = 0.0


class Request(_State):
    """An answer in the works."""

    id: str
    client: str = ""
    state: Literal["waiting", "prefill", "decode", "preempted"] = "waiting"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    done_tokens: int = Field(0, description="prompt and answer tokens that are in the KV cache")
    completion_tokens: int = 0
    max_tokens: int = 0
    age_seconds: float = 0.0
    tokens_per_second: float | None = Field(None, description="since its first token")


class Step(_State):
    """A step on its way round the chain."""

    number: int
    rows: int
    sequences: int = 0
    age_ms: float = 0.0


class Scheduler(_State):
    """Gauges, then counters since the chain began."""

    running: int = 0
    waiting: int = 0
    preempted: int = 0
    in_flight: int = 0
    kv_total: int = 0
    kv_used: int = 0
    kv_kept: int = 0
    steps: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0


class Chain(_State):
    """A copy of the model."""

    id: int = Field(0, description="another one for every chain that a head opens")
    stages: tuple[Stage, ...]
    microseconds: ChainTimes = ChainTimes()
    traversal_ms: float | None = Field(None, description="median of a step's way round")
    scheduler: Scheduler = Scheduler()
    requests: tuple[Request, ...] = ()
    steps: tuple[Step, ...] = Field((), description="those in flight, oldest first")
    failure: str | None = None


class Device(_State):
    """A device OpenVINO sees on a node."""

    name: str
    full_name: str = ""
    memory: int | None = None
    driver: str | None = None


class Hardware(_State):
    """What a PC has; memory in bytes."""

    processor: str = ""
    cores: int = 0
    memory: int = 0
    devices: tuple[Device, ...] = ()
    is_laptop: bool = False


class Condition(_State):
    """How a PC does; memory in bytes."""

    memory_free: int = 0
    memory_allowed: int = 0
    disk_free: int = 0
    battery: float | None = None
    on_mains: bool = True
    temperature: float | None = Field(None, description="degrees Celsius, of the hottest sensor of processor or GPU")
    load: float | None = Field(None, description="0 to 1, of all processors together")


class Versions(_State):
    """What a node runs."""

    edge_agent: str = ""
    protocol: int = 0
    openvino: str = ""
    python: str = ""
    system: str = ""


class LinkState(_State):
    """The way from a node to another."""

    latency_ms: float
    bytes_per_second: float


class Work(_State):
    """Something a node does beside serving: fetching, compiling, measuring. 0 of 0: nobody knows how far it is."""

    what: str
    done: float = 0.0
    total: float = 0.0


class Node(_State):
    """A PC of the fleet."""

    name: str
    key: str
    address: str = ""
    addresses: tuple[str, ...] = ()
    since: float = Field(0.0, description="seconds since 1970")
    is_head: bool = False
    versions: Versions = Versions()
    hardware: Hardware = Hardware()
    condition: Condition = Condition()
    device: str | None = None
    memory_planned: int = Field(0, description="bytes that the plan at work gives it")
    links: dict[str, LinkState] = Field({}, description="by the other node's key")
    work: Work | None = None
    problem: str | None = None


class PendingNode(_State):
    """A node that waits to be let in."""

    code: str
    name: str | None = None
    address: str = ""
    waiting_seconds: float = 0.0
    is_forgotten: bool = False


class Event(_State):
    """Something that happened."""

    time: float = Field(description="seconds since 1970")
    what: str


class FleetName(_State):
    """Which fleet."""

    name: str
    key: str = ""
    port: int = 0


class Fleet(_State):
    """Everything. Without a fleet (one PC, --local-stages) `fleet` is None and there are no nodes."""

    model: Model
    chains: tuple[Chain, ...] = ()
    retiring: tuple[Chain, ...] = Field((), description="replaced by others, they end with their last request")
    parked: int = Field(0, description="requests that wait for a chain")
    fleet: FleetName | None = None
    nodes: tuple[Node, ...] = ()
    pending: tuple[PendingNode, ...] = ()
    events: tuple[Event, ...] = ()
    carriers: dict[str, str] = Field({}, description="names of those that carry stages, gone or not, by their keys")
    left_out: dict[str, str] = Field({}, description="why nodes carry nothing, by their keys")
    problem: str | None = None
    waits_for: str = ""

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of the nodes by key, also of those that carry stages and are gone."""
        return self.carriers | {node.key: node.name for node in self.nodes}

    @property
    def requests(self) -> tuple[Request, ...]:
        """All answers in the works."""
        return tuple(request for chain in (*self.chains, *self.retiring) for request in chain.requests)
