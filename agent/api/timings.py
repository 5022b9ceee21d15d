"""Where an answer's time went, as JSON data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.answer_times import AnswerTimes
    from agent.served import FleetControl, Served


class Timings:
    """Tells the times of answers, with the names of the nodes that made them."""

    def __init__(self, model: Served, fleet: FleetControl | None) -> None:
        self._model, self._fleet = model, fleet

    def told(self, times: AnswerTimes) -> dict[str, Any]:
        """`timings` of an answer; milliseconds, those of stages, wire and head medians of a step."""
        steps = times.steps
        rate = times.tokens_per_second
        stages = [] if steps is None else steps.stages
        names = self._names(None if steps is None else steps.chain, len(stages))
        return {
            "first_token_ms": _rounded(1e3 * times.first_token),
            "tokens_per_second": None if rate is None else _rounded(rate),
            "stages": [
                {"node": name, "compute": _rounded(stage.compute / 1e3), "wait": _rounded(stage.wait / 1e3)}
                for name, stage in zip(names, stages, strict=True)
            ],
            "wire": 0.0 if steps is None else _rounded(steps.wire / 1e3),
            "head": 0.0 if steps is None else _rounded(steps.head / 1e3),
            "acceptance": None,
        }

    def _names(self, chain: int | None, stages: int) -> list[str]:
        """Of the nodes of a chain; its stages' numbers without a fleet, and where the chain is gone."""
        for copy in (*self._model.copies, *self._model.retiring):
            if self._fleet is not None and copy.chain.limits.epoch == chain:
                return [self._fleet.name_of(stage.host) for stage in copy.chain.stages]
        return [f"stage {number}" for number in range(1, stages + 1)]


def _rounded(value: float) -> float:
    return round(value, 3)
