"""The two ways a step goes round: down the chain, or from the head to each stage and back.

Every stage and wire serves steps in the order of their numbers, so when a step passes each of them follows from when it
left and when the step before passed (Lindley, "The theory of queues with a single server", 1952). Nothing needs to be
simulated event by event between the head's sends and what comes back to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from pipeline.messages import NOT_YET, Free, StageTiming, Step
from pipeline.simulation.link_model import LinkModel, Wire
from pipeline.simulation.modelled_stage import ModelledStage

Topology = Literal["chain", "hub"]


class Stages(Protocol):
    """Stages that a head sends steps to."""

    def send(self, step: Step, now: float, void: Mapping[int, float]) -> tuple[float, tuple[StageTiming, ...]]:
        """Have a step go round, leaving at `now`: when its answer is back, and what its stages tell of it.

        `void`: sequences whose rows of guesses follow a wrong one, with the time when the head knows it.
        """
        ...


class Chained(Stages):
    """Each stage pushes to the next, the tail answers the head, and tells the first stage too what it sampled.

    Args:
        stages: In order.
        links: Head to first stage, between the stages, tail to head: one more than stages. The tail's word to the
            first stage takes a wire like its answer's; a stage alone hears itself.
    """

    def __init__(self, stages: Sequence[ModelledStage], links: Sequence[LinkModel]) -> None:
        self._stages, self._links = stages, links
        self._wires = [Wire(link) for link in links]
        self._echo = Wire(links[-1] if len(stages) > 1 else LinkModel())
        self._echoed: dict[int, float] = {}
        """When the first stage knows the token sampled last, for each sequence; see `pipeline.run_ahead`."""

    def send(self, step: Step, now: float, void: Mapping[int, float]) -> tuple[float, tuple[StageTiming, ...]]:
        """As `Stages.send`; the tail finds out what is void by itself, the head tells the others past the chain."""
        count, answers = len(step.tokens), sum(part.sample for part in step.rows)
        ready, timings, at = self._known_at(step), [], now
        for i, (stage, link, wire) in enumerate(zip(self._stages, self._links, self._wires, strict=False)):
            at = wire.carry(at, count * (link.bytes_per_row if i else link.bytes_per_token))
            told = {}
            if void:
                is_tail = stage is self._stages[-1]
                told = {name: 0.0 if is_tail else known + link.latency_ms for name, known in void.items()}
            at, timing = stage.run(step.rows, at, 0.0 if i else ready, told)
            timings.append(timing)
        answer = answers * self._links[-1].bytes_per_answer
        if step.echo:
            known = self._echo.carry(at, answer)
            self._echoed.update((part.sequence, known) for part in step.rows if part.sample)
        for operation in step.operations:
            if isinstance(operation, Free):
                self._echoed.pop(operation.sequence, None)
        return self._wires[-1].carry(at, answer), tuple(timings)

    def _known_at(self, step: Step) -> float:
        """When the first stage knows all the tokens of a step."""
        known, start = 0.0, 0
        for part in step.rows:
            if step.tokens[start] == NOT_YET:
                known = max(known, self._echoed.get(part.sequence, 0.0))
            start += part.count
        return known


class Hub(Stages):
    """The head calls each stage in turn and waits for its answer; a link carries one call at a time.

    Args:
        stages: In order.
        links: One to each stage, for the call and its answer.
    """

    def __init__(self, stages: Sequence[ModelledStage], links: Sequence[LinkModel]) -> None:
        self._calls = list(zip(stages, links, strict=True))
        self._free_at = [0.0] * len(stages)

    def send(self, step: Step, now: float, void: Mapping[int, float]) -> tuple[float, tuple[StageTiming, ...]]:
        """As `Stages.send`; there are no guesses in a hub."""
        count, answers = len(step.tokens), sum(part.sample for part in step.rows)
        timings, at, last = [], now, len(self._calls) - 1
        for i, (stage, link) in enumerate(self._calls):
            called = max(at, self._free_at[i])
            there = count * (link.bytes_per_row if i else link.bytes_per_token)
            back = answers * link.bytes_per_answer if i == last else count * link.bytes_per_row
            at, timing = stage.run(step.rows, called + link.occupied_ms(there) + link.latency_ms)
            at += link.occupied_ms(back) + link.latency_ms
            self._free_at[i] = at
            timings.append(timing)
        return at, tuple(timings)
