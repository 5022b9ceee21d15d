"""The vocabulary of a running model: what the head, the stages and the scheduler say to one another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shards.runtime import SequenceRows

if TYPE_CHECKING:
    from pipeline.averages import LastSteps

__all__ = [
    "Failed",
    "FinishReason",
    "Finished",
    "Fork",
    "Free",
    "Open",
    "Operation",
    "Request",
    "RequestEvent",
    "Sampling",
    "SequenceRows",
    "Service",
    "StageTiming",
    "Step",
    "StepResult",
    "Token",
    "TokenEvent",
    "Usage",
    "Verify",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tail picks tokens; the fields mean what they mean in the OpenAI API and in Hugging Face's generate.

    The order: logit bias, repetition penalty (prompt and answer), presence and frequency penalty (answer), then
    temperature, top-k, top-p, min-p; temperature 0 is greedy. The noise of a token depends only on
    (seed, position, token id).
    """

    temperature: float = 1.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n likeliest (0..20)."""
    seed: int = 0

    @property
    def needs_history(self) -> bool:
        """Whether the tail must know the sequence's tokens."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Open:
    """A sequence begins: the tail learns how to sample it.

    `history` holds the tokens known so far (prompt, then answer on a replay) where `sampling.needs_history`,
    and `prompt` how many of them are the prompt.
    """

    sequence: int
    sampling: Sampling
    history: tuple[int, ...] = ()
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """`target` begins with the first `length` tokens of `source`; before rows of it comes an Open for its sampling."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Free:
    """A sequence ends, on every stage."""

    sequence: int


Operation = Open | Fork | Free

NOT_YET = -1
"""A token the head has not seen yet."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Tells that rows of a sequence are guesses: the tail samples them in order, as long as they are right.

    They are right when the first one's token is what the tail sampled last for the sequence, and each further one's
    is what it sampled from the row before.
    """

    sequence: int
    branch: int
    """Which continuation of the text they belong to: once a guess was wrong, all rows of its branch are void."""
    tokens: tuple[int, ...]
    """Of the sampled rows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One ragged batch travelling down a chain once.

    Operations are applied first, in order. A step without rows carries operations alone. `tokens` is int32
    [sum of counts]: what the first stage reads; NOT_YET stands for the token that the sequence's row before this one
    is being sampled for, which the chain fills in itself.
    """

    number: int
    operations: tuple[Operation, ...]
    rows: tuple[SequenceRows, ...]
    tokens: NDArray[np.int32]
    echo: bool = False
    """Whether the tail tells its tokens to the first stage as well, so that NOT_YET may follow."""
    verifies: tuple[Verify, ...] = ()
    """Of the sequences whose rows are guesses; the tokens of all others are known to be right."""


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token. `position` is its own (the row it was sampled from is one before)."""

    sequence: int
    position: int
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest (token id, log probability), most likely first."""
    hidden: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """While recorded: the hidden state [hidden size] before the final norm that it was sampled from."""


class StageTiming(NamedTuple):
    """Where a stage's time went in one step, in microseconds."""

    wait: float
    """From the last send to this step's arrival at the engine (idle)."""
    compute: float
    """Engine, and on the tail the sampler."""
    send: float
    """Encoding and handing to the socket (of the step before: a frame cannot carry the time of its own sending)."""
    queued: float = 0.0
    """From this step's arrival at the stage until the engine took it (busy with other steps)."""
    rows: int = 0
    """That were computed: those that were still wanted, and those added to keep a shape. 0: nothing is known."""
    change: float = 0.0
    """Of `compute`, what preparing the device for another number of rows took."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the tail answers for a step; `error` is set when a stage could not do it."""

    number: int
    tokens: tuple[Token, ...]
    timings: tuple[StageTiming, ...] = ()
    error: str | None = None


FinishReason = Literal["stop", "length", "cancelled"]

Service = Literal["interactive", "batch"]
"""Somebody waits for the answer, or it is wanted whenever there is time for it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants: token ids in, at most `max_tokens` out."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    client: str = ""
    """Fairness is between clients."""
    priority: int = 0
    """Larger goes first; waiting ages it."""
    service: Service = "interactive"
    """A batch request gives way to interactive ones at every step."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt: int
    cached: int
    """Prompt tokens taken from the prefix cache."""
    completion: int
    queued: float | None = field(default=None, compare=False)
    """Seconds from its arrival until it was let in; None if it never was."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A request has a new token."""

    request: str
    token: Token


@dataclass(frozen=True, slots=True)
class Finished:
    """A request has ended in its full answer (a stop token is not part of it)."""

    request: str
    reason: FinishReason
    usage: Usage
    steps: LastSteps | None = None
    """What the chain's last steps took; None if no chain had it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request has ended in one clear error."""

    request: str
    error: Exception
    usage: Usage


RequestEvent = TokenEvent | Finished | Failed
