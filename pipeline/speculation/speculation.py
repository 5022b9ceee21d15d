"""Which sequences get rows of guesses in a step, and how many. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Line
from heapq import merge
from itertools import islice

from pipeline.pacing import Pace
from pipeline.sequence import Sequence
from pipeline.speculation.acceptance import Acceptance
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.drafter import MAX_GUESSES, MODEL, Drafter, DraftText
from pipeline.step_times import StepTimes

_WORTHWHILE = 1.03
"""A step with guesses must bring so many times the tokens a second of one without: times and chances lie a bit."""

_TRIAL_GUESSES = 4
"""Guesses of a trial of a drafter that does not pay, to see whether it would by now."""
_TRIAL_SHARE = 0.005
"""The part of the time that trials may take."""
_LEAST_TOKENS = 64
"""Tokens, of all answers together, from one trial to the next, whatever they take."""
_TRIAL_TRIES = 16
"""How often it is looked whether the guesses of a trial are there; nobody waits for them."""

_LIKELY = 0.4
"""Guesses that take time are made behind others that all come true with this probability."""

_CANDIDATES = 64
"""Guesses of a step that are thought about, of all sequences together."""
_HELD_FOR = 4
"""Guesses of a sequence that are looked at to see whether it had better not run ahead."""

_LOOK_AHEAD = 16
"""Guesses that are asked for where they cost nothing."""


class Speculation:
    """Asks a drafter, and trusts it as far as it has been right.

    **How many**: of all guesses for a step those most likely to come true are taken, one by one, and as many of them
    as bring the most tokens a second by the step times; in a full chain, or where rows are dear, that is none.
    Guesses that are not sent are compared with what comes all the same, so it shows when they would pay again.

    **Ahead**: where the chain would be idle, guesses follow others that are still being verified. They are sent if
    what is won when all before them come true outweighs what is lost when not: half a step that is in the way.

    Choosing a length by expected acceptance and cost follows Chen et al. (2023, arXiv:2302.01318) and Leviathan et al.
    (2022, arXiv:2211.17192); the noise shared by draft and target replaces their rejection sampling.
    """

    def __init__(self, config: SpeculationConfig, drafter: Drafter, times: StepTimes, stages: int) -> None:
        self.config, self.drafter, self._stages = config, drafter, stages
        self.sent = self.right = 0
        """Rows of guesses that were sent, and those that came true."""
        self._times = times
        self._acceptance = Acceptance()
        self._priced: dict[Pace, tuple[int, tuple[float, float]]] = {}
        """By pace: the version of the times they are of, and what `_prices` says."""
        self._confirmed = 0
        """Tokens of all answers."""
        self._next_trial, self._next_row = 0, _LEAST_TOKENS
        """How many of these there must be before guesses are asked for, or sent, that do not seem to pay."""
        self._trial: tuple[Sequence, int] | None = None
        """Whose guesses are being tried, and how often it is still looked for them."""

    # What is learnt

    def confirm(self, sequence: Sequence, token: int) -> bool:
        """Take a sampled token of a sequence; True if rows on their way are void by it."""
        depth, branch = sequence.depth, sequence.branch
        position = len(sequence.tokens)
        was_sent = sequence.sent > position and sequence.ahead != position
        self._confirmed += 1
        hit = sequence.confirm(token)
        if hit is not None:
            self._acceptance.learn(sequence.request.id, sequence.kind, depth, hit)
            self.right += hit and was_sent
        return sequence.branch != branch

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        request = sequence.request
        self._acceptance.end(request.id)
        if self._trial is not None and self._trial[0] is sequence:
            self._trial = None
        self.drafter.end(request.id, request.client, sequence.tokens)

    # What is asked

    def prepare(self, sequence: Sequence, pace: Pace) -> bool:
        """Have guesses for a sequence; False if its next step is to wait for some."""
        if sequence.guesses or self._ask(sequence, self.config.draft_tokens or _LOOK_AHEAD, is_free=True):
            return True
        if count := self._wanted(sequence, pace):
            return self._ask(sequence, count) is not None
        self._try(sequence, pace)
        return True

    def extend(self, sequence: Sequence) -> None:
        """Have guesses behind those that have been sent."""
        pending = len(sequence.guesses)
        if sequence.sent < len(sequence.tokens) + pending or pending >= MAX_GUESSES:
            return
        room = MAX_GUESSES - pending
        self._ask(sequence, min(self.config.draft_tokens or _LOOK_AHEAD, room), is_free=True)
        is_likely = pending and (self.config.draft_tokens or self._chances(sequence, pending)[-1] > _LIKELY)
        if is_likely and len(sequence.guesses) == pending:
            self._ask(sequence, min(self.config.draft_tokens or pending, room))  # as many more as were worth it before

    def _wanted(self, sequence: Sequence, pace: Pace) -> int:
        """How many guesses to ask for that cost time; 0: none now."""
        if self.config.draft_tokens is not None:
            return self.config.draft_tokens
        if not self.drafter.cost_ms(1):
            return 0
        chances = self._acceptance.chances(sequence.request.id, MODEL, 0, _LOOK_AHEAD)
        best, most, won = 0, self._plain_rate(pace) * _WORTHWHILE, 0.0
        for count, chance in enumerate(chances, 1):
            won += chance
            period = self._period_ms(pace, pace.rows * (1 + count)) + self.drafter.cost_ms(count)
            if pace.rows * (1 + won) > most * period:
                best, most = count, pace.rows * (1 + won) / period
        return best

    def _try(self, sequence: Sequence, pace: Pace) -> None:
        """Now and then, ask for guesses that do not pay by what is known; nobody waits for them."""
        cost = self.drafter.cost_ms(_TRIAL_GUESSES)
        if not cost or self.config.draft_tokens is not None:
            return
        if self._trial is None:
            if self._confirmed < self._next_trial:
                return
            self._trial = sequence, _TRIAL_TRIES
            tokens = cost / _TRIAL_SHARE * self._plain_rate(pace)
            self._next_trial = self._confirmed + max(_LEAST_TOKENS, int(tokens))
        trying, tries = self._trial
        if trying is sequence:
            is_over = self._ask(sequence, _TRIAL_GUESSES) is not None or tries <= 1
            self._trial = None if is_over else (sequence, tries - 1)

    def _ask(self, sequence: Sequence, count: int, is_free: bool = False) -> list[int] | None:
        request = sequence.request
        count = min(count, request.max_tokens - sequence.completion - len(sequence.guesses) - 1)
        if count < 1:
            return sequence.guesses
        text = DraftText(request.id, request.client, sequence.tokens, sequence.guesses, request.sampling)
        guesses = self.drafter.guess(text, count, is_free)
        if guesses is None:
            return None
        if guesses and not sequence.guesses:
            sequence.kind = self.drafter.kind(request.id)
        sequence.guesses += guesses
        return sequence.guesses

    # What is sent

    def widths(self, group: Line[Sequence], pace: Pace, room: int) -> list[int]:
        """How many guesses of each sequence go along with the row of its last token.

        Args:
            group: The sequences of a step, none of whose guesses has been sent.
            pace: Of the answers that are being written.
            room: Most rows of guesses together.
        """
        if self.config.draft_tokens is not None:
            counts = [min(len(sequence.guesses), self.config.draft_tokens) for sequence in group]
            return _within(counts, room)
        each = max(1, _CANDIDATES // len(group))
        lines = ([(chance, i) for chance in self._chances(sequence, each)] for i, sequence in enumerate(group))
        likeliest = islice(merge(*lines, reverse=True), room)
        counts = [0] * len(group)
        best, expected = counts.copy(), float(len(group))
        most = _WORTHWHILE * self._rate(pace, len(group), expected)
        for rows, (chance, i) in enumerate(likeliest, len(group) + 1):
            counts[i] += 1
            expected += chance
            rate = self._rate(pace, rows, expected)
            if rate > most:
                best, most = counts.copy(), rate
        if not any(best) and any(counts) and self._confirmed >= self._next_row:
            # It may only seem so: what such a step takes is not learnt from others.
            self._next_row = self._confirmed + len(group) * _LEAST_TOKENS
            best[max(range(len(group)), key=lambda i: self._chances(group[i], 1) or [0.0])] = 1
        return best

    def holds(self, sequence: Sequence, pace: Pace) -> bool:
        """Whether it is better to wait for the token being sampled, and verify guesses after it, than to run ahead."""
        if not sequence.guesses or sequence.sent > len(sequence.tokens):
            return False
        if self.config.draft_tokens is not None:
            return True
        lost, price = self._prices(pace)
        _, *chances = self._chances(sequence, _HELD_FOR)  # the first one is of the token being sampled
        return sum(max(0.0, chance - price) for chance in chances) > lost

    def width_ahead(self, sequence: Sequence, room: int) -> int:
        """How many guesses to send behind those that are still being verified; 0: none."""
        sent = sequence.sent - len(sequence.tokens)
        if not self.config.asynchronous or not 0 <= sent < len(sequence.guesses):
            return 0
        chances = self._chances(sequence, sent + room)[sent:]
        if not chances:
            return 0
        step = self._times.answers_ms(1)
        won = chances[0] * ((self._times.depth - 1) * step + self._times.link_ms)
        if won <= (1 - chances[0]) * step / 2:
            return 0
        if self.config.draft_tokens is not None:
            return min(len(chances), self.config.draft_tokens)
        total, best, most = 0.0, 0, 0.0
        for rows, chance in enumerate(chances, 1):
            total += chance
            rate = total / (self._times.answers_ms(rows) or 1.0)
            if rate > most:
                best, most = rows, rate
        return best

    def _chances(self, sequence: Sequence, most: int) -> list[float]:
        count = min(len(sequence.guesses), most)
        return self._acceptance.chances(sequence.request.id, sequence.kind, sequence.depth, count)

    def _prices(self, pace: Pace) -> tuple[float, float]:
        """In tokens: what a sequence loses that does not run ahead, and what a row of a guess costs."""
        version, prices = self._priced.get(pace, (-1, (0.0, 0.0)))
        if version != self._times.version:
            plain, more = self._period_ms(pace, pace.rows), self._period_ms(pace, pace.rows + 1)
            lost = self._saved_ms(pace) / max(plain, 1e-3)
            prices = lost, pace.rows * (_WORTHWHILE * more / max(plain, 1e-3) - 1)
            self._priced[pace] = self._times.version, prices
        return prices

    def _plain_rate(self, pace: Pace) -> float:
        """Of answers that run ahead."""
        return pace.rows / max(self._period_ms(pace, pace.rows) - self._saved_ms(pace), 1e-3)

    def _saved_ms(self, pace: Pace) -> float:
        """What running ahead saves: the tail's token goes to the first stage, not to the head and from there."""
        idle = self._period_ms(pace, pace.rows) - pace.in_flight * self._times.answers_ms(pace.rows)
        return min(max(0.0, idle), self._times.link_ms / (self._stages + 1))

    def _rate(self, pace: Pace, rows: int, expected: float) -> float:
        return expected / max(self._period_ms(pace, rows), 1e-3)

    def _period_ms(self, pace: Pace, rows: int) -> float:
        """Time in which each of the groups has its turn, if all are of so many rows."""
        step = self._times.answers_ms(rows)
        return max(pace.in_flight * step, self._times.depth * step + self._times.link_ms)


def _within(counts: list[int], room: int) -> list[int]:
    """The counts, the last ones cut where there is no room for all."""
    left, cut = room, []
    for count in counts:
        cut.append(min(count, left))
        left -= cut[-1]
    return cut
