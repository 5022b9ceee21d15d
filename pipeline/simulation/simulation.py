"""A head that drives modelled stages by a policy, in virtual time. No threads, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from random import Random

from pipeline.messages import Failed, Finished, RequestEvent, StepResult, TokenEvent
from pipeline.simulation.arrivals import Arrival, Arrivals
from pipeline.simulation.kv_meter import KvMeter
from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.modelled_drafter import ModelledDrafter
from pipeline.simulation.modelled_stage import ModelledStage
from pipeline.simulation.modelled_tail import ModelledTail
from pipeline.simulation.outcome import Outcome, RequestTimes, StepTimes
from pipeline.simulation.policy import Policy
from pipeline.simulation.stage_model import StageModel
from pipeline.simulation.topology import Chained, Hub, Topology
from shards.errors import StageError
from shards.progress import Progress, silent

_FRUITLESS_STEPS = 10_000
"""So many steps without a token, besides one for each token of the open prompts, lead nowhere."""


class Simulation:
    """Runs requests over modelled stages to the end of the last.

    Answers end at their `max_tokens`: sampled tokens are made up, and stop tokens never come. A result occupies the
    head for `head_ms`; then the steps that follow from it leave.

    Args:
        policy: Decides which rows travel when. Fresh.
        stages: In order.
        links: See `Chained` and `Hub`.
        kv: The stages' KV cache. Fresh.
        topology: How steps go round.
        head_ms: What the head takes for a result and the steps after it.
        seed: Of the jitter.
        drafter: The policy's, where it has one.
    """

    def __init__(
        self,
        policy: Policy,
        stages: Sequence[StageModel],
        links: Sequence[LinkModel],
        kv: KvMeter,
        *,
        topology: Topology = "chain",
        head_ms: float = 0.0,
        seed: int = 0,
        drafter: ModelledDrafter | None = None,
    ) -> None:
        self._drafter, self._tail = drafter, ModelledTail(has_guesses=drafter is not None)
        self._policy, self._kv, self._head_ms = policy, kv, head_ms
        working = [ModelledStage(model, Random(f"{seed} {i}")) for i, model in enumerate(stages)]
        self._stages = Chained(working, links) if topology == "chain" else Hub(working, links)
        self._now = self._head_free_at = 0.0
        self._events: list[tuple[float, int, Arrival | StepResult | None, bool]] = []
        """(time, order, what, whether the head has had its time for it); nothing: guesses are there."""
        self._back: dict[int, float] = {}
        """When the head has the result of each step, while it is in flight."""
        self._order = count()
        self._open: dict[str, int] = {}
        """Tokens of the prompt of each request that has not ended."""
        self._tokens = self._fruitless = 0
        self._outcome = Outcome({}, [], [stage.busy for stage in working], kv.tokens, 0)

    def run(self, arrivals: Arrivals, progress: Progress = silent) -> Outcome:
        """Run to the end of the last request; `progress` is told of tokens, a hundred times.

        Raises:
            EdgeAgentError: a request is refused, or its answer fails; the policy asks stages for the impossible; or
                it never comes to an end.
        """
        for arrival in arrivals.first():
            self._at(arrival.at, arrival)
        while self._events:
            self._now, _, what, is_taken = heapq.heappop(self._events)
            if self._drafter is not None:
                self._drafter.now = self._now
            if isinstance(what, Arrival):
                self._add(what)
                if self._events and self._events[0][0] == self._now and isinstance(self._events[0][2], Arrival):
                    continue  # those that come together are looked at together
            elif what is None:
                pass
            elif is_taken:
                self._back.pop(what.number, None)
                for event in self._policy.complete(what, self._now / 1e3):
                    self._hear(event, arrivals, progress)
            else:
                self._head_free_at = max(self._now, self._head_free_at) + self._head_ms
                self._at(self._head_free_at, what, is_taken=True)
                continue
            self._send_steps()
        if self._open or not self._policy.is_idle:
            raise StageError(
                f"nothing is in flight and the policy sends nothing, but {len(self._open)} requests are open",
                hint="The policy has a deadlock.",
            )
        self._outcome.kv_peak = self._kv.peak
        return self._outcome

    def _at(self, time: float, what: Arrival | StepResult | None, is_taken: bool = False) -> None:
        heapq.heappush(self._events, (time, next(self._order), what, is_taken))

    def _add(self, arrival: Arrival) -> None:
        request = arrival.request
        self._policy.add(request, self._now / 1e3)
        self._outcome.requests[request.id] = RequestTimes(
            arrival.cohort, len(request.prompt), request.max_tokens, self._now
        )
        self._open[request.id] = len(request.prompt)

    def _send_steps(self) -> None:
        while step := self._policy.next_step(self._now / 1e3):
            self._fruitless += 1
            if self._fruitless > _FRUITLESS_STEPS + sum(self._open.values()):
                raise StageError(
                    f"{self._fruitless} steps were sent without a new token, and {len(self._open)} requests are open",
                    hint="The policy goes round in circles.",
                )
            self._kv.take(step)
            void = self._tail.void(step)
            known = {name: self._back.get(number, 0.0) for name, number in void.items()}
            back, timings = self._stages.send(step, self._now, known)
            self._outcome.steps.append(StepTimes(len(step.tokens), self._now, back))
            self._back[step.number] = back + self._head_ms
            self._at(back, StepResult(step.number, self._tail.sample(step, void), timings))
        if self._drafter is not None and (due := self._drafter.due) is not None:
            self._drafter.due = None
            self._at(due, None)

    def _hear(self, event: RequestEvent, arrivals: Arrivals, progress: Progress) -> None:
        match event:
            case TokenEvent(request):
                times = self._outcome.requests[request]
                times.tokens.append(self._now)
                if len(times.tokens) > times.wanted:
                    raise StageError(f"the answer of {request!r} goes on after its {times.wanted} tokens")
                self._fruitless = 0
                self._tokens += 1
                if self._tokens % -(-arrivals.tokens // 100) == 0:
                    progress("tokens", self._tokens, arrivals.tokens)
            case Failed(error=error):
                raise error
            case Finished(request, usage=usage):
                times = self._outcome.requests[request]
                times.ended, times.cached = self._now, usage.cached
                if len(times.tokens) != times.wanted:
                    raise StageError(
                        f"the answer of {request!r} ended after {len(times.tokens)} tokens of {times.wanted}"
                    )
                del self._open[request]
                if (arrival := arrivals.after(request, self._now)) is not None:
                    self._at(arrival.at, arrival)
