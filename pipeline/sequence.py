"""A request on its way through the chain: its tokens, and which of them the stages have been sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.messages import NOT_YET, Open, Request, Usage
from pipeline.snapshots import RequestSnapshot, RequestState


@dataclass(eq=False, slots=True)
class Sequence:
    """The state of one request. Compared by identity.

    Prompt and answer are one list of tokens, so a first prefill, a replay after a preemption and a decode row are
    the same thing: the tokens not sent yet.
    """

    request: Request
    arrived: float = 0.0
    begun: float | None = None
    """When it was let in first."""
    first_token: float | None = None
    """When its first token came."""
    tokens: list[int] = field(init=False)
    """Prompt and answer so far."""
    id: int = -1
    """Its name on the stages; negative while it holds no KV cache. A replay gets a new one."""
    turn: int = -1
    """Which admission was its first; the order is kept when it is preempted."""
    yields: bool = field(init=False)
    """Whether it gives way to interactive requests: a batch request that has not waited too long for that yet."""
    guesses: list[int] = field(default_factory=list)
    """Tokens that may follow; their rows may have been sent."""
    kind: str = ""
    """What the first of them rests on."""
    passed_over: tuple[str, int, int] | None = None
    """The latest guess that was not taken: what it rests on, its position and its token."""
    silence: int = -1
    """Tokens of the text, with its guesses, when the drafter had no other."""
    depth: int = 0
    """How many tokens have been confirmed of the guess that the first of `guesses` belongs to."""
    branch: int = 0
    """Number of the continuation that the rows of guesses belong to: a wrong guess begins another."""
    ahead: int = -1
    """Position of the row that was sent last before its token was known."""
    sent: int = 0
    """Tokens in the stages' KV cache once the steps in flight are done: more than `tokens` when it runs ahead, or
    guesses of it are being verified."""
    held: int = 0
    """Tokens in the stages' KV cache with those that are void."""
    done: int = 0
    """Tokens that every stage has in its KV cache."""
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    awaiting: int = 0
    """Sampled rows in flight: one, or two when it runs ahead."""
    is_finished: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.yields = self.request.service == "batch"

    def send(self, count: int, is_unknown: bool = False) -> tuple[list[int], bool]:
        """Count the next rows as sent.

        Args:
            count: How many.
            is_unknown: Of a single row: its token is the one being sampled.

        Returns:
            Their tokens, and whether there are guesses among them.
        """
        past, known = self.sent, len(self.tokens)
        self.sent = self.held = end = past + count
        self.awaiting += end >= known
        if is_unknown:
            self.ahead = past
            return [NOT_YET], False
        guesses = self.guesses[max(0, past - known) : max(0, end - known)]
        return self.tokens[past:end] + guesses, bool(guesses)

    def confirm(self, token: int) -> bool | None:
        """Take a sampled token.

        Returns:
            Whether it had been guessed; None if there was no guess. After a wrong one the rows that follow it are void.
        """
        position = len(self.tokens)
        self.tokens.append(token)
        if not self.guesses:
            return None
        if self.guesses[0] == token:
            del self.guesses[0]
            self.depth += 1
            return True
        self.forget_guesses(position + (position == self.ahead))  # a row that ran ahead had the token itself
        return False

    def forget_guesses(self, kept: int) -> None:
        """Drop the guesses; of the rows that were sent only the first `kept` count."""
        self.guesses.clear()
        self.depth = 0
        if self.sent > kept:
            self.sent = kept
            self.branch += 1

    @property
    def unsent(self) -> int:
        """Rows to run before the next token can be sampled: 1 while decoding, 0 or less while waiting for a result."""
        return len(self.tokens) - self.sent

    @property
    def precedence(self) -> tuple[bool, int]:
        """Among those that run: the smaller may take a larger one's place, never the other way round."""
        return self.yields, self.turn

    @property
    def can_run_ahead(self) -> bool:
        """Whether the row of the token that is being sampled may be sent, if that cannot be the last one."""
        return self.awaiting == 1 and self.sent == len(self.tokens) and self.completion + 1 < self.request.max_tokens

    @property
    def is_ahead(self) -> bool:
        """Whether a row is on its way whose token is still being sampled."""
        return self.ahead >= len(self.tokens)

    @property
    def completion(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        queued = None if self.begun is None else self.begun - self.arrived
        return Usage(len(self.request.prompt), self.cached, self.completion, queued)

    def snapshot(self, state: RequestState, now: float) -> RequestSnapshot:
        """How it does."""
        rate = None
        if self.first_token is not None and self.completion > 1 and now > self.first_token:
            rate = (self.completion - 1) / (now - self.first_token)
        return RequestSnapshot(
            id=self.request.id,
            client=self.request.client,
            state=state,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached,
            done_tokens=self.done,
            completion_tokens=self.completion,
            max_tokens=self.request.max_tokens,
            age_seconds=now - self.arrived,
            tokens_per_second=rate,
        )

    @property
    def opening(self) -> Open:
        """What the tail must know before it samples the first row under the current id."""
        sampling = self.request.sampling
        if not sampling.needs_history:
            return Open(self.id, sampling)
        return Open(self.id, sampling, history=tuple(self.tokens), prompt=len(self.request.prompt))
