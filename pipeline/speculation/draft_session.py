"""A draft model at work on several texts: which rows it is to run next, what its tokens mean. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

import numpy as np

from pipeline.messages import NOT_YET, Free, Open, Operation, SequenceRows, Step, StepResult
from pipeline.speculation.drafter import DraftText

IN_FLIGHT = 2
"""Steps on their way: while one is computed, the next waits at the stage."""

_CATCH_UP = 96
"""Most rows that a text waits for; one that is further behind goes on without guesses until the draft has caught up.
It is more than the tokens from one trial of a drafter that does not pay to the next."""

_PATIENCE = 10
"""Guesses are given up that take so many times what they usually do."""

_WINDOW = 15
"""Times that count, the latest."""
_UNKNOWN_MS = 1.0
"""What is said before there are any."""
_FEW_ROWS = 4
"""Rows of the steps whose times count."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a draft model and its chain can do."""

    max_rows: int
    """Of a step."""
    max_sequences: int
    """Of a step."""
    kv_tokens: int
    block: int
    """Tokens of a block of the KV cache."""
    context_length: int
    vocabulary: int
    """Token ids it can read."""


@dataclass(eq=False, slots=True)
class _Text:
    """A text that the draft model follows."""

    key: str
    id: int
    """Its name on the stage."""
    prompt: int
    """Tokens that were there when it was first asked about."""
    line: list[int] = field(default_factory=list)
    """The text, then what the draft thinks."""
    agreed: int = 0
    """So many tokens of the line are known to be the text's."""
    sent: int = 0
    """Rows in the KV cache once the steps in flight are done; of a token more than the line has while it is drawn."""
    goal: int = 0
    """So long the line is to become."""
    turn: int = 0
    """Number of the text's change that the rows in flight belong to; what comes of earlier ones is void."""
    opening: Open | None = None
    """How to sample it, to be told before its next rows."""
    blocks: int = 0
    """Of KV cache, held for it."""
    awaited: int = 0
    """So long it must be before anybody need look at it."""
    is_new: bool = False
    """Whether no guess has come since some were asked for."""
    since: float = 0.0
    """When that was, or the last of them came."""

    @property
    def rows_left(self) -> int:
        """To be sent until it has all it is to have; those behind the line's end are one a step."""
        return max(0, self.goal - 1 - self.sent)

    @property
    def is_awaited(self) -> bool:
        """Whether guesses are to come that were asked for."""
        return len(self.line) < self.goal

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done for it and nobody waits for it."""
        return not self.rows_left and not self.is_awaited


@dataclass(frozen=True, slots=True)
class _Part:
    """A text's rows in a step."""

    text: _Text
    turn: int
    count: int
    is_drawn: bool


class DraftSession:
    """Takes questions, gives steps for a chain of one stage, takes their results.

    Of each text the chain's KV cache keeps what is right: the rows of tokens that came otherwise than guessed are
    forgotten by the `past` of the next ones. Tokens are drawn one step after another without waiting for the results,
    of all texts together in each step. Long texts are caught up with in chunks beside them.
    Texts that were asked about longest ago leave the cache where others need the room.
    """

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._texts: dict[str, _Text] = {}
        """The one asked about last at the end."""
        self._operations: list[Operation] = []
        self._in_flight: dict[int, tuple[_Part, ...]] = {}
        self._steps = self._opened = self._blocks = 0
        self.least_patience_ms = inf
        """Nobody gives up sooner."""
        self._is_late = False
        """Whether guesses have been given up, and no result has come since."""
        self._first_ms: deque[float] = deque(maxlen=_WINDOW)
        self._next_ms: deque[float] = deque(maxlen=_WINDOW)

    # What the head asks

    def guess(self, text: DraftText, count: int, now: float, piece: int | None = None) -> list[int] | None:
        """See Drafter; of `piece` or more at a time, if there is one, else all together."""
        length = len(text.tokens) + len(text.guesses)
        count = min(count, self._limits.context_length - length)
        if count < 1:
            return []
        if self._is_late:
            return []
        known = self._texts.pop(text.key, None) or self._begun(text)
        self._texts[text.key] = known
        if not self._follow(known, text):
            return []
        drawn = len(known.line) - length
        if drawn >= count:
            return known.line[length : length + count]
        if not self._reserve(known, length + count):
            self._leave(known)
            return []
        if length - known.sent > _CATCH_UP:
            known.goal = max(known.goal, length)
            return []
        if known.goal <= len(known.line):
            known.is_new, known.since = True, now
        known.goal = max(known.goal, length + count)
        enough = min(piece or count, count)
        if drawn >= enough:
            return known.line[length:]
        known.awaited = length + enough
        return None

    def patience_ms(self, now: float) -> float | None:
        """How long somebody still waits for guesses; None if nobody does."""
        waiting = [text for text in self._texts.values() if text.is_awaited]
        if not waiting or self._is_late:
            return None
        patience = max(
            self.least_patience_ms, _PATIENCE * max(self.cost_ms(text.goal - text.agreed) for text in waiting)
        )
        return max(0.0, patience - 1e3 * (now - min(text.since for text in waiting)))

    def give_up(self) -> None:
        """Nobody waits any longer, and there are no guesses until a result has come."""
        self._is_late = True

    def end(self, key: str) -> None:
        """A text has ended."""
        text = self._texts.get(key)
        if text is not None:
            self._leave(text)

    def cost_ms(self, count: int) -> float:
        """Time for so many guesses of one text, by the latest ones; above 0."""
        first = median(self._first_ms) if self._first_ms else self.guess_ms
        return first + (count - 1) * self.guess_ms

    @property
    def guess_ms(self) -> float:
        """Time for a guess behind others, by the latest ones; above 0."""
        return median(self._next_ms) if self._next_ms else _UNKNOWN_MS

    @property
    def texts(self) -> int:
        """Texts in the KV cache."""
        return len(self._texts)

    @property
    def held_tokens(self) -> int:
        """Tokens of KV cache held for them."""
        return self._blocks * self._limits.block

    # What drives the chain

    def next_step(self) -> Step | None:
        """The next step to send; None if there is nothing to do now, or enough is in flight."""
        if len(self._in_flight) >= IN_FLIGHT:
            return None
        room = self._limits.max_rows
        parts: list[_Part] = []
        rows: list[SequenceRows] = []
        tokens: list[int] = []
        operations, self._operations = self._operations, []
        # Those that are drawn first, then the rest of the room for those furthest on.
        for text in sorted((text for text in self._texts.values() if text.rows_left), key=lambda text: text.rows_left):
            if not room or len(parts) == self._limits.max_sequences:
                break
            if text.opening is not None:
                operations.append(text.opening)
                text.opening = None
            read = text.line[text.sent : min(text.goal - 1, text.sent + room)] or [NOT_YET]
            past, text.sent = text.sent, text.sent + len(read)
            is_drawn = text.sent >= len(text.line)
            rows.append(SequenceRows(text.id, past, len(read), int(is_drawn)))
            parts.append(_Part(text, text.turn, len(read), is_drawn))
            tokens += read
            room -= len(read)
        if not (rows or operations):
            return None
        step = Step(self._steps, tuple(operations), tuple(rows), np.array(tokens, np.int32), echo=True)
        self._in_flight[step.number] = tuple(parts)
        self._steps += 1
        return step

    def complete(self, result: StepResult, now: float) -> bool:
        """Take the result of a step, one without error; True if a text has all its guesses now."""
        drawn = {token.sequence: token for token in result.tokens}
        is_ready, self._is_late = False, False
        for part in self._in_flight.pop(result.number, ()):
            text = part.text
            if not part.is_drawn or part.turn != text.turn:
                continue
            text.line.append(drawn[text.id].token)
            if part.count <= _FEW_ROWS:
                (self._first_ms if text.is_new else self._next_ms).append(1e3 * (now - text.since))
            text.is_new, text.since = False, now
            is_ready = is_ready or len(text.line) >= text.awaited
        return is_ready

    # Texts

    def _begun(self, text: DraftText) -> _Text:
        self._opened += 1
        return _Text(text.key, self._opened, prompt=len(text.tokens))

    def _follow(self, text: _Text, asked: DraftText) -> bool:
        """Bring the line up to date: what it has beyond the text stays if it goes on from there; False: it cannot."""
        come = [*asked.tokens[text.agreed :], *asked.guesses]
        if come and not 0 <= min(come) <= max(come) < self._limits.vocabulary:
            self._leave(text)
            return False
        same = text.agreed
        for token, thought in zip(come, text.line[text.agreed :], strict=False):
            if token != thought:
                break
            same += 1
        length = text.agreed + len(come)
        if same < length:
            text.line[same:] = come[same - text.agreed :]
            text.sent = min(text.sent, same, length - 1)
            text.goal = 0
            text.turn += 1
            if asked.sampling.needs_history or text.turn == 1:
                text.opening = self._opening(text, asked)
        text.agreed = len(asked.tokens)
        return True

    def _opening(self, text: _Text, asked: DraftText) -> Open:
        bias = {token: bias for token, bias in asked.sampling.logit_bias.items() if token < self._limits.vocabulary}
        sampling = replace(asked.sampling, logit_bias=bias, logprobs=None)
        if not sampling.needs_history:
            return Open(text.id, sampling)
        return Open(text.id, sampling, history=tuple(text.line), prompt=text.prompt)

    def _reserve(self, text: _Text, length: int) -> bool:
        """Hold KV cache for so many tokens of a text; others that nobody waits for make room."""
        wanted = max(text.blocks, -(-length // self._limits.block))
        capacity = self._limits.kv_tokens // self._limits.block
        idle = (other for other in list(self._texts.values()) if other is not text and other.is_idle)
        while self._blocks - text.blocks + wanted > capacity:
            other = next(idle, None)
            if other is None:
                return False
            self._leave(other)
        self._blocks += wanted - text.blocks
        text.blocks = wanted
        return True

    def _leave(self, text: _Text) -> None:
        """Forget a text, here and on the stage."""
        del self._texts[text.key]
        text.turn += 1
        self._blocks -= text.blocks
        self._operations.append(Free(text.id))
