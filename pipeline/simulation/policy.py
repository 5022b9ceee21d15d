"""What decides in a simulation which rows travel when: our scheduler, or one that another system is published with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pipeline.messages import Request, RequestEvent, Step, StepResult
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.drafter import Drafter


class Policy(Protocol):
    """A scheduler, as the simulated head drives it. `pipeline.scheduler.Scheduler` is one.

    Times are seconds. Steps carry their operations as for real stages: rows of a sequence follow one another, a fork's
    length is a multiple of the block, and a sequence holds its KV blocks until a Free.
    """

    def add(self, request: Request, now: float) -> None:
        """Take a request in; raises an EdgeAgentError if it never can be served."""
        ...

    def next_step(self, now: float) -> Step | None:
        """The next step to send; None if there is nothing to send before the next request or result."""
        ...

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        """Take the result of a step: a TokenEvent for each new token, and one Finished or Failed for each end."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        ...


class PolicyMaker(Protocol):
    """Makes a policy for one run.

    It raises ConfigurationError, or pydantic's ValidationError, where the config or the options do not suit it.
    """

    def __call__(self, config: SchedulerConfig, options: Mapping[str, object], drafter: Drafter | None) -> Policy:
        """A fresh policy for a chain like `config`; `options` are the scenario's `policy_options`.

        `drafter` guesses how answers go on, for a policy that asks one.
        """
        ...
