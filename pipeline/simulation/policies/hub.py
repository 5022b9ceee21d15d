"""The policy of "Pre-Compiled Pipeline Shards for Distributed LLM Inference on Intel AI PC Fleets" (arXiv:2608.19147).

Its measured runs have a thread for each stream. A thread runs the stages one after another and waits for each: the
whole prompt in one traversal, then a token at a time, batch 1. A stage serves one call at a time, and a remote one is
locked from the call to its answer. That second part is the `hub` topology's; what is left here is that a stream has one
step on its way, with its rows alone. Streams that find all places taken wait for one; the paper has a place for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from pipeline.messages import Request, RequestEvent, Step, StepResult
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.policies.streams import Stream, Streams, refuse_drafter
from pipeline.speculation.drafter import Drafter
from shards.errors import ConfigurationError


class HubPolicy:
    """One user's token at a time."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._streams = Streams(config)
        self._ready: deque[Stream] = deque()

    def add(self, request: Request, now: float) -> None:
        """As `Policy.add`; raises CapacityError if the request is larger than a place."""
        self._streams.add(request)

    def next_step(self, now: float) -> Step | None:
        """As `Policy.next_step`."""
        while (stream := self._streams.admit()) is not None:
            self._ready.append(stream)
        if not self._ready:
            return self._streams.farewell()
        stream = self._ready.popleft()
        return self._streams.step([(stream, stream.unsent)])

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        """As `Policy.complete`."""
        done = self._streams.complete(result)
        self._ready += done.ready
        return done.events

    @property
    def is_idle(self) -> bool:
        """As `Policy.is_idle`."""
        return self._streams.is_idle


def hub(config: SchedulerConfig, options: Mapping[str, object], drafter: Drafter | None = None) -> HubPolicy:
    """A PolicyMaker; there are no options."""
    refuse_drafter(drafter)
    if options:
        raise ConfigurationError(f"the hub policy has no options, these are {sorted(options)}", where="policy_options")
    return HubPolicy(config)
