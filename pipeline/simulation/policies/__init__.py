"""Policies by the name that scenarios give them."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.policies.groups import groups
from pipeline.simulation.policies.hub import hub
from pipeline.simulation.policy import Policy, PolicyMaker
from pipeline.speculation.drafter import Drafter
from shards.errors import ConfigurationError


def ours(config: SchedulerConfig, options: Mapping[str, object], drafter: Drafter | None = None) -> Policy:
    """The scheduler that serves; it has no options beyond its config."""
    if options:
        raise ConfigurationError("our scheduler is set by [scheduler], not by options", where="policy_options")
    return Scheduler(config, drafter)


POLICIES: dict[str, PolicyMaker] = {"ours": ours, "groups": groups, "hub": hub}
