"""What the planner is told, and what it answers."""

from __future__ import annotations

from math import ceil, floor
from operator import ne
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.scheduler_config import SchedulerConfig
from shards.edges import Edge, attentions, begin_of, end_of
from shards.kv_cache import kv_precision, kv_token_bytes
from shards.manifest import Manifest
from shards.profile import CostProfile
from shards.runtime import EngineName, KvPrecision, Mode

HEAD = "head"
"""Name of the head's end of a link; a node on the head's own PC has links of its own to it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSize(_Frozen):
    """What a model needs, in bytes."""

    layers: tuple[int, ...] = Field(description="weights of each decoder layer", min_length=1)
    embedding: int = Field(ge=0, description="weights of the first stage besides its layers")
    head: int = Field(ge=0, description="weights of the tail besides its layers")
    shared: int = Field(0, ge=0, description="weights that every stage needs besides")
    kv_token: int = Field(ge=0, description="KV cache of one layer for one token")
    hidden_size: int = Field(gt=0)
    vocabulary: int = Field(gt=0)

    @classmethod
    def of(
        cls, manifest: Manifest, mode: Mode, engine: EngineName = "openvino-paged", kv: KvPrecision | None = None
    ) -> Self:
        """The size of a package's model, run so; `kv` is its KV cache's precision, if not the mode's own.

        Raises:
            ConfigurationError: the mode does not go with that precision.
            PackageError: the package has nothing for the engine.
        """
        facts, spans = manifest.facts, manifest.spans_for(engine)

        def size(of: tuple[tuple[int, int], ...]) -> int:
            return sum(end - start for start, end in of)

        return cls(
            layers=tuple(map(size, spans.layers)),
            embedding=size(spans.embedding),
            head=size(spans.head),
            shared=size(spans.shared),
            kv_token=kv_token_bytes(facts, kv_precision(mode, kv), engine),
            hidden_size=facts.hidden_size,
            vocabulary=facts.vocabulary,
        )

    def stage(self, begin: Edge, end: Edge, kv_tokens: int) -> int:
        """Bytes of a stage between edges with room for `kv_tokens` tokens; of a divided layer all weights count."""
        weights = self.shared + sum(self.layers[floor(begin) : ceil(end)])
        weights += self.embedding * (begin == 0) + self.head * (end == len(self.layers))
        return weights + attentions(begin, end) * kv_tokens * self.kv_token


class NodeOffer(_Frozen):
    """What a node offers with one of its engines; of the offers of a node, a plan takes one at most."""

    id: str
    name: str
    memory: int = Field(ge=0, description="bytes a stage may take on the device")
    costs: CostProfile = Field(description="measured with this model, on the engine and the device it would run on")
    size: ModelSize | None = Field(None, description="of the model for this engine; None: as for the others")


class Link(_Frozen):
    """One direction of the way between two nodes, or a node and the head; ids, or HEAD."""

    source: str
    target: str
    latency_ms: float = Field(ge=0, allow_inf_nan=False, description="one way, of a small message")
    bytes_per_second: float = Field(gt=0, allow_inf_nan=False)


class Wish(_Frozen):
    """What the users want."""

    users: int = Field(4, gt=0, description="answers made at the same time")
    context: int = Field(4096, gt=0, description="tokens of each, prompt and answer")
    prompt: int = Field(512, gt=0, description="tokens of a typical prompt, for the time to first token")
    replicas: bool = Field(True, description="several copies of the model may run")
    stages: int | None = Field(None, gt=0, description="exactly so many stages in each chain; None: what is best")
    token_budget: int = Field(SchedulerConfig.token_budget, gt=0, description="most rows of a prefill step")


class StagePlan(_Frozen):
    """Consecutive layers [first_layer, end_layer) on a node, the first and the last perhaps in part."""

    node: str
    first_layer: int
    end_layer: int
    begins_after_attention: bool = Field(False, description="the stage before does the first layer's attention")
    ends_after_attention: bool = Field(False, description="of the last layer only the attention is done here")
    engine: EngineName = "openvino-paged"
    memory: int = Field(description="bytes: weights and KV cache, without the engine's own buffers")


class Prediction(_Frozen):
    """What a chain, or a whole plan, is expected to give."""

    one_user: float = Field(description="tokens per second of a single user")
    users: int
    many_users: float = Field(description="tokens per second of `users` users together")
    first_token_ms: float = Field(description="from a prompt of the wish's length to its first token, when idle")


class ChainPlan(_Frozen):
    """One copy of the model."""

    stages: tuple[StagePlan, ...] = Field(min_length=1)
    users: int = Field(gt=0, description="how many of the wish's users it serves")
    kv_tokens: int = Field(gt=0, description="tokens of each stage's KV cache")
    prediction: Prediction

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Where each stage begins, and where the last ends."""
        return (*map(begin_of, self.stages), end_of(self.stages[-1]))


class LeftOut(_Frozen):
    """A node that carries nothing, and why, with the figures."""

    node: str
    reason: str
    prediction_with: Prediction | None = Field(None, description="of the best plan that has it carry something")


class Plan(_Frozen):
    """Chains over nodes."""

    chains: tuple[ChainPlan, ...] = Field(min_length=1)
    prediction: Prediction
    left_out: tuple[LeftOut, ...] = ()
    without: dict[str, Prediction | None] = Field(
        default_factory=dict, description="for each node in use, what is left when it is not there; None: nothing fits"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for chain in self.chains:
            edges = chain.edges
            if edges[0] != 0 or any(map(ne, map(end_of, chain.stages), edges[1:])):
                raise ValueError("the stages of a chain follow one another from layer 0")
        return self
