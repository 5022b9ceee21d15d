"""What /metrics tells, in Prometheus' format. One registry a server, so several can live in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.messages import Usage

if TYPE_CHECKING:
    from pipeline.snapshots import HeadSnapshot

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts what requests come to; the heads' own numbers are read when somebody asks."""

    def __init__(self, snapshots: Callable[[], Sequence[HeadSnapshot]]) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "edge_agent_answers",
            "Answers that have ended, by how (refused: for load)",
            ["reason"],
            registry=self._registry,
        )
        self._tokens = Counter("edge_agent_tokens", "Tokens of ended answers", ["kind"], registry=self._registry)
        self._first_token = Histogram(
            "edge_agent_first_token_seconds", "From request to first token", buckets=_SECONDS, registry=self._registry
        )
        self._queue = Histogram(
            "edge_agent_queue_seconds",
            "From a request's arrival at its chain until it was let in, of finished answers",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._answer = Histogram(
            "edge_agent_answer_seconds", "From request to end", buckets=_SECONDS, registry=self._registry
        )
        self._registry.register(_HeadCollector(snapshots))

    def first_token(self, seconds: float) -> None:
        """An answer's first token is there."""
        self._first_token.observe(seconds)

    def ended(self, reason: str, seconds: float, usage: Usage | None) -> None:
        """An answer has ended: `stop`, `length`, `cancelled` or `failed`; or it was `refused` for load."""
        self._answers.labels(reason).inc()
        if reason != "refused":
            self._answer.observe(seconds)
        if usage is not None:
            self._tokens.labels("prompt").inc(usage.prompt)
            self._tokens.labels("cached").inc(usage.cached)
            self._tokens.labels("completion").inc(usage.completion)
            if usage.queued is not None:
                self._queue.observe(usage.queued)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


_COUNTERS = {
    "steps": ("steps", "Steps sent"),
    "rows": ("rows", "Rows of all steps"),
    "guesses_sent": ("sent_guesses", "Rows of guessed tokens in steps"),
    "guesses_right": ("right_guesses", "Those of them that came true"),
    "preemptions": ("preemptions", "Sequences put back for want of room, or to let interactive requests go first"),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that have begun"),
    "prefix_cache_saved_tokens": ("cached_tokens", "Those of them that came from the prefix cache"),
    "prefix_cache_lookups": ("lookups", "Requests that have looked for a cached prefix"),
    "prefix_cache_hits": ("hits", "Those of them that began from one"),
    "prefix_cache_evicted_tokens": ("evicted_tokens", "Tokens of kept KV cache that have made room"),
}
"""Of chains: by name, what counts it in the scheduler."""

_DROPPED = "dropped_frames"


class _HeadCollector(Collector):
    """The scheduler's gauges and counters, and where the time of a step goes."""

    def __init__(self, snapshots: Callable[[], Sequence[HeadSnapshot]]) -> None:
        self._snapshots = snapshots
        self._counts: dict[int, Mapping[str, int]] = {}
        """Of the chains that were there last, by number."""
        self._ended: dict[str, int] = dict.fromkeys((*_COUNTERS, _DROPPED), 0)
        """Of those that are not any more: what is counted must never become less."""
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the head need not be asked when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Ask the heads, once for a page."""
        snapshots = self._snapshots()
        schedulers = [snapshot.scheduler for snapshot in snapshots]

        def total(field: str) -> float:
            return float(sum(getattr(scheduler, field) for scheduler in schedulers))

        up = sum(snapshot.failure is None for snapshot in snapshots)
        yield GaugeMetricFamily("edge_agent_up", "Chains that serve", up)
        paused, batch = total("paused"), total("waiting_batch")
        sequences = GaugeMetricFamily(
            "edge_agent_sequences",
            "Sequences by state (preempted: for want of room; paused: for interactive ones)",
            labels=["state"],
        )
        for state, count in (
            ("running", total("running")),
            ("waiting", total("waiting")),
            ("preempted", total("preempted") - paused),
            ("paused", paused),
        ):
            sequences.add_metric([state], count)
        yield sequences
        waiting = GaugeMetricFamily(
            "edge_agent_waiting", "Requests that have not begun, by service", labels=["service"]
        )
        waiting.add_metric(["interactive"], total("waiting") - batch)
        waiting.add_metric(["batch"], batch)
        yield waiting
        yield GaugeMetricFamily("edge_agent_steps_in_flight", "Steps on their way round", total("in_flight"))
        cache = GaugeMetricFamily("edge_agent_kv_tokens", "Tokens of KV cache by state", labels=["state"])
        for state in ("total", "used", "kept"):
            cache.add_metric([state], total(f"kv_{state}"))
        yield cache
        counts = self._count(snapshots)
        for name, (_, what) in _COUNTERS.items():
            yield CounterMetricFamily(f"edge_agent_{name}", what, counts[name])
        yield CounterMetricFamily(
            f"edge_agent_{_DROPPED}", "Frames that were not what they should be", counts[_DROPPED]
        )
        if counts["prefix_cache_lookups"]:
            hits = counts["prefix_cache_hits"] / counts["prefix_cache_lookups"]
            saved = counts["prefix_cache_saved_tokens"] / counts["prompt_tokens"]
            yield GaugeMetricFamily("edge_agent_prefix_cache_hit_ratio", "Hits by lookups, since the start", hits)
            yield GaugeMetricFamily(
                "edge_agent_prefix_cache_saved_ratio", "Saved by prompt tokens, since the start", saved
            )
        if counts["guesses_sent"]:
            right = counts["guesses_right"] / counts["guesses_sent"]
            yield GaugeMetricFamily("edge_agent_guesses_right_ratio", "Right by sent guesses, since the start", right)
        drafters = GaugeMetricFamily(
            "edge_agent_drafter_up", "Whether what guesses for a chain does so", labels=["chain", "drafter"]
        )
        for chain, snapshot in enumerate(snapshots):
            if snapshot.drafter is not None:
                drafters.add_metric([str(chain), snapshot.drafter.name], snapshot.drafter.off is None)
        yield drafters
        times = GaugeMetricFamily(
            "edge_agent_step_seconds", "Median of a step's time by chain and part", labels=["chain", "part"]
        )
        use = GaugeMetricFamily(
            "edge_agent_stage_use", "Part of the last seconds in which a stage computed", labels=["chain", "stage"]
        )
        for chain, snapshot in enumerate(snapshots):
            for number, stage in enumerate(snapshot.times.stages):
                for part in ("wait", "queued", "compute", "send"):
                    times.add_metric([str(chain), f"stage {number} {part}"], getattr(stage, part) / 1e6)
            for part in ("wire", "head", "listeners", "traversal"):
                times.add_metric([str(chain), part], getattr(snapshot.times, part) / 1e6)
            for number, part_of_time in enumerate(snapshot.times.use):
                use.add_metric([str(chain), str(number)], part_of_time)
        yield times
        yield use

    def _count(self, snapshots: Sequence[HeadSnapshot]) -> dict[str, int]:
        """The counters of all chains there have been."""
        with self._lock:
            before, self._counts = self._counts, {each.times.chain: _counts(each) for each in snapshots}
            for chain in before.keys() - self._counts.keys():
                for name, count in before[chain].items():
                    self._ended[name] += count
            return {
                name: ended + sum(counts[name] for counts in self._counts.values())
                for name, ended in self._ended.items()
            }


def _counts(snapshot: HeadSnapshot) -> dict[str, int]:
    counted = {name: getattr(snapshot.scheduler, field) for name, (field, _) in _COUNTERS.items()}
    return counted | {_DROPPED: snapshot.dropped}
