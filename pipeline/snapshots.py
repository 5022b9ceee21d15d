"""What a running model tells of itself when it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.averages import LastSteps
from pipeline.speculation.drafter import DrafterFacts

RequestState = Literal["waiting", "prefill", "decode", "preempted"]


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """A request that has not ended."""

    id: str
    client: str
    state: RequestState
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    done_tokens: int
    """Tokens of prompt and answer that every stage has in its KV cache."""
    completion_tokens: int
    max_tokens: int
    age_seconds: float
    tokens_per_second: float | None
    """Since its first token; None before the second."""


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """What the scheduler is doing: gauges, then counters since it began."""

    running: int
    waiting: int
    """Of both classes, those that have not run yet."""
    waiting_batch: int
    """Those of them that are batch requests."""
    preempted: int
    """Those that have run and wait to go on."""
    paused: int
    """Those of them that are batch requests, which gave way."""
    in_flight: int
    kv_total: int
    """Tokens the KV cache holds."""
    kv_used: int
    """Tokens of KV cache that running sequences hold."""
    kv_kept: int
    """Tokens of KV cache that only finished sequences hold; they make room when it is needed."""
    steps: int
    rows: int
    prompt_tokens: int
    """Of the requests that have been admitted."""
    cached_tokens: int
    """Prompt tokens among them that came from the prefix cache."""
    completion_tokens: int
    sent_guesses: int
    """Rows of guesses that were sent."""
    right_guesses: int
    """Those of them that came true."""
    preemptions: int
    lookups: int
    """Requests that were looked up in the prefix cache: all that have been admitted."""
    hits: int
    """Those of them that started from a cached prefix."""
    evicted_tokens: int
    """Tokens of KV cache that were kept, and have made room."""
    prompt_rows: int
    """Most rows of prompts in the next step, as things stand."""
    step_times: tuple[tuple[int, float], ...]
    """Learnt (answer rows, milliseconds) of a step on the slowest stage; empty before anything is known."""
    prompt_row_ms: float | None
    """What the first row of a prompt adds to that; None before anything is known."""
    link_ms: float
    """What a step spends outside the stages on its way round."""


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """A step on its way round the chain."""

    number: int
    rows: int
    sequences: int
    age_ms: float


@dataclass(frozen=True, slots=True)
class HeadSnapshot:
    """What the head is doing."""

    scheduler: SchedulerSnapshot
    requests: tuple[RequestSnapshot, ...]
    """In the order they came."""
    steps: tuple[StepSnapshot, ...]
    """Those in flight, oldest first."""
    times: LastSteps
    """Where the time of steps goes."""
    received_bytes: int
    """Results that the tail has sent since the chain began."""
    dropped: int
    """Frames that came but were not results the head waits for."""
    failure: str | None
    """Why the chain serves no more; None while it does."""
    drafter: DrafterFacts | None = None
    """What guesses how its answers go on; None: nothing does."""
