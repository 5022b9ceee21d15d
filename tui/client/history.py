"""The last minutes in numbers, for sparklines. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

from tui.client.state import Fleet

SAMPLES = 240
"""Two minutes at two samples a second."""


class History:
    """Rates and gauges by sample, newest last; all series have the same length."""

    def __init__(self) -> None:
        self.tokens_per_second: deque[float] = deque(maxlen=SAMPLES)
        self.queue: deque[float] = deque(maxlen=SAMPLES)
        """Requests that wait."""
        self.running: deque[float] = deque(maxlen=SAMPLES)
        self.stage_use: dict[str, deque[float]] = {}
        """By node key: 0 to 1, the most of its stages."""
        self.link_bytes_per_second: dict[str, deque[float]] = {}
        """By the sending node's key."""
        self._tokens = _Rates()
        self._bytes = _Rates()
        self._when: float | None = None

    def add(self, fleet: Fleet, now: float) -> None:
        """Take a state that was read at `now` seconds of a clock that never goes back."""
        seconds = 0.0 if self._when is None else now - self._when
        self._when = now
        tokens = self._tokens.since(
            {chain.id: chain.scheduler.completion_tokens for chain in (*fleet.chains, *fleet.retiring)}, seconds
        )
        sent = self._bytes.since(
            {
                (chain.id, number, stage.node): stage.sent_bytes
                for chain in fleet.chains
                for number, stage in enumerate(chain.stages)
            },
            seconds,
        )
        use: dict[str, float] = {}
        rates: dict[str, float] = {}
        for chain in fleet.chains:
            for number, stage in enumerate(chain.stages):
                use[stage.node] = max(use.get(stage.node, 0.0), stage.use or 0.0)
                rates[stage.node] = rates.get(stage.node, 0.0) + sent[chain.id, number, stage.node]
        self.tokens_per_second.append(sum(tokens.values()))
        self.queue.append(fleet.parked + sum(chain.scheduler.waiting for chain in fleet.chains))
        self.running.append(sum(chain.scheduler.running for chain in fleet.chains))
        _append(self.stage_use, use, len(self.queue))
        _append(self.link_bytes_per_second, rates, len(self.queue))


class _Rates:
    """Rates of counters that come, go, and begin again."""

    def __init__(self) -> None:
        self._before: dict[Hashable, int] | None = None

    def since(self, counters: Mapping[Hashable, int], seconds: float) -> dict[Hashable, float]:
        """By how much each has grown, per second; one that is new or fell has begun at 0."""
        before, self._before = self._before, dict(counters)
        if before is None or seconds <= 0:
            return dict.fromkeys(counters, 0.0)
        rates = {}
        for name, count in counters.items():
            old = before.get(name, 0)
            rates[name] = (count - old if count >= old else count) / seconds
        return rates


def _append(series: dict[str, deque[float]], values: Mapping[str, float], length: int) -> None:
    """A value for each series, 0 where there is none; what is new has zeros before, what was only zeros goes."""
    for name in values.keys() - series.keys():
        series[name] = deque([0.0] * (length - 1), maxlen=SAMPLES)
    for name in list(series):
        series[name].append(values.get(name, 0.0))
        if name not in values and not any(series[name]):
            del series[name]
