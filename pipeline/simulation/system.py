"""What is simulated: stages, links, and the policy that drives them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.faults import located
from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.modelled_drafter import DrafterModel, ModelledDrafter
from pipeline.simulation.policies import POLICIES
from pipeline.simulation.policy import Policy
from pipeline.simulation.stage_model import StageModel
from pipeline.simulation.topology import Topology
from pipeline.speculation.drafter import Drafter
from shards.errors import ConfigurationError, EdgeAgentError
from shards.profile import ROWS

_CONFIG = TypeAdapter(SchedulerConfig)
_CONFIG_FIELDS = {field.name for field in fields(SchedulerConfig)}
_MOST_STAGES = 1000
_MOST_BLOCKS = 1_000_000


class StageEntry(StageModel):
    """A stage, or several alike in a row."""

    repeat: int = Field(1, ge=1, le=_MOST_STAGES)


class System(BaseModel):
    """The modelled machines and the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = "ours"
    policy_options: dict[str, Any] = {}
    scheduler: dict[str, Any] = Field(
        description="fields of SchedulerConfig; stages, step_times, link_ms and detour_ms follow from the models, and "
        "runs_ahead from the topology, where they are not given"
    )
    topology: Topology = "chain"
    stages: tuple[StageEntry, ...] = Field(min_length=1)
    draft: DrafterModel | None = Field(None, description="guesses how answers go on; for our own scheduler")
    link: LinkModel = Field(LinkModel(), description="every link")
    links: tuple[LinkModel, ...] = Field(
        (), description="each link, in place of `link`: head to first stage, between the stages, tail to head; in a "
        "hub, one to each stage"
    )  # fmt: skip
    local_head: bool = Field(False, description="head and first stage are one PC, no link lies between them")
    head_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="of the head, for a result and what follows it")

    @model_validator(mode="after")
    def _check(self) -> Self:
        stages, wanted = len(self.models), len(self.models) + (self.topology == "chain")
        if stages > _MOST_STAGES:
            raise ConfigurationError(f"{stages} are more than {_MOST_STAGES}", where="stages")
        if self.links and len(self.links) != wanted:
            raise ConfigurationError(
                f"a {self.topology} of {stages} stages has {wanted} links, here are {len(self.links)}", where="links"
            )
        if self.links and (besides := self.model_fields_set & {"link", "local_head"}):
            raise ConfigurationError("it does not go with `links`, which tells of every link", where=min(besides))
        if unknown := set(self.scheduler) - _CONFIG_FIELDS:
            raise ConfigurationError(
                f"there is no such field; there are {', '.join(sorted(_CONFIG_FIELDS))}",
                where=f"scheduler.{min(unknown)}",
            )
        if self.policy not in POLICIES:
            raise ConfigurationError(
                f"there is no policy {self.policy!r}; there are {', '.join(sorted(POLICIES))}", where="policy"
            )
        blocks = self.config.kv_tokens // self.config.block
        if blocks > _MOST_BLOCKS:
            raise ConfigurationError(
                f"{self.config.kv_tokens} tokens in blocks of {self.config.block} are {blocks} blocks, and a "
                f"simulation has {_MOST_BLOCKS} at most",
                where="scheduler.kv_tokens",
            )
        self.make_policy(self.make_drafter(0))
        return self

    @property
    def models(self) -> list[StageModel]:
        """Each stage."""
        return [stage for stage in self.stages for _ in range(stage.repeat)]

    @property
    def all_links(self) -> list[LinkModel]:
        """Each link, as `links`."""
        if self.links:
            return list(self.links)
        count = len(self.models) + (self.topology == "chain")
        return [LinkModel() if self.local_head and i == 0 else self.link for i in range(count)]

    @property
    def config(self) -> SchedulerConfig:
        """What a scheduler of this system would be told.

        Raises:
            ConfigurationError: a field is missing or impossible.
        """
        models = self.models
        told = {
            "stages": len(models),
            "step_times": tuple((rows, max(model.table_ms(rows) for model in models)) for rows in ROWS),
            "link_ms": self._way_ms,
            "detour_ms": self.all_links[0].latency_ms if self.topology == "chain" else None,
            "runs_ahead": self.topology == "chain",
        }
        try:
            return _CONFIG.validate_python({**told, **self.scheduler})
        except (ValidationError, EdgeAgentError) as error:
            raise located(error, "scheduler") from None

    def make_policy(self, drafter: Drafter | None = None) -> Policy:
        """A fresh policy, which asks `drafter` for guesses.

        Raises:
            ConfigurationError: the config or the options do not suit it.
        """
        try:
            return POLICIES[self.policy](self.config, self.policy_options, drafter)
        except ValidationError as error:
            raise located(error, "policy_options") from None

    def make_drafter(self, seed: int) -> ModelledDrafter | None:
        """A fresh drafter, if there is one; `seed` says which of its guesses are right."""
        return None if self.draft is None else ModelledDrafter(self.draft, seed)

    @property
    def _way_ms(self) -> float:
        """What a step of one row spends outside the stages."""
        crossings = 1 if self.topology == "chain" else 2
        way = sum(link.latency_ms + link.occupied_ms(link.bytes_per_row) for link in self.all_links)
        return self.head_ms + crossings * way
