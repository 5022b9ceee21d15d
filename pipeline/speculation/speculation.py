"""Which sequences get rows of guesses in a step, and how many. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Line
from heapq import merge
from itertools import islice
from typing import NamedTuple

from pipeline.pacing import Pace
from pipeline.sequence import Sequence
from pipeline.speculation.acceptance import Acceptance
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.drafter import MAX_GUESSES, MODEL, Drafter, DraftText, Want
from pipeline.speculation.evidence import WORTHWHILE, Evidence
from pipeline.speculation.rates import Rates
from pipeline.step_times import StepTimes

_MOST_PIECE = 8
"""Guesses that are sent at a time behind others, or a row that is on its way."""

_WORTHWHILE_AMONG_OTHERS = 1.25
"""As WORTHWHILE, of guesses that hold up other steps: one that was wrong costs all answers time."""

_COMPARED = 6
"""Guesses of two drafters that are compared."""

_TRIAL_GUESSES = 4
"""Guesses of a trial of a drafter that does not pay, to see whether it would by now."""
_TRIAL_SHARE = 0.005
"""The part of the time that trials may take."""
_LEAST_TOKENS = 64
"""Tokens, of all answers together, from one trial to the next, whatever they take."""
_TRIAL_TRIES = 16
"""How often it is looked whether the guesses of a trial are there; nobody waits for them."""

_CANDIDATES = 64
"""Guesses of a step that are thought about, of all sequences together."""
_HELD_FOR = 4
"""Guesses of a sequence that are looked at to see whether it had better not run ahead."""

_LOOK_AHEAD = 16
"""Guesses that are asked for where they cost nothing."""


class _Plan(NamedTuple):
    """How guesses that take time are got for an answer."""

    guesses: int
    """How many to ask for at a time; 0: none now."""
    streams: bool = False
    """Whether its row leaves at once and they follow it; else it waits for them."""
    piece: int = 1
    """Of those that follow, how many are sent at a time."""


class Speculation:
    """Asks a drafter, and trusts it as far as it has been right.

    **How many**: of all guesses for a step those most likely to come true are taken, one by one, and as many of them
    as bring the most tokens a second by the step times; in a full chain, or where rows are dear, that is none.
    Guesses that are not sent are compared with what comes all the same, so it shows when they would pay again.

    **Ahead**: where the chain would be idle, guesses follow others that are still being verified. They are made and
    sent if what is won when all before them come true outweighs what is lost when not: half their time.
    Guesses that take time need not be waited for then: a row leaves at once and they follow it as they are made, if
    that brings more than to send them along with it.

    Choosing a length by expected acceptance and cost follows Chen et al. (2023, arXiv:2302.01318) and Leviathan et al.
    (2022, arXiv:2211.17192); the noise shared by draft and target replaces their rejection sampling.
    """

    def __init__(self, config: SpeculationConfig, drafter: Drafter, times: StepTimes) -> None:
        self.config, self.drafter = config, drafter
        self._rates = Rates(times)
        self.sent = self.right = 0
        """Rows of guesses that were sent, and those that came true."""
        self._times = times
        self._acceptance = Acceptance()
        self.answers = 0
        """That are being written; 0: as many as the pace is for."""
        self.may_follow = True
        """Whether guesses can be sent behind others as things stand."""
        self._evidence = Evidence()
        self._is_making = False
        """Whether guesses that take time have been asked for when it was thought about last."""
        self._expected = 1.0
        """Tokens a second that this should give."""
        self._shared = Evidence()
        """Of guesses that hold up other steps."""
        self._is_sharing, self._shared_rate = False, 0.0
        """Whether such are made, and the tokens a second that this should give; 0: nothing is known."""
        self._plans: dict[str, tuple[tuple[int, Pace, int, int, bool], _Plan]] = {}
        """Of each request what was planned last, and for which state of it."""
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
        if sequence.passed_over is not None and sequence.passed_over[1] == position:
            kind, _, guess = sequence.passed_over
            self._acceptance.learn(sequence.request.id, kind, 0, guess == token, position)
        hit = sequence.confirm(token)
        if hit is not None:
            self._acceptance.learn(sequence.request.id, sequence.kind, depth, hit, position)
            self.right += hit and was_sent
        return sequence.branch != branch

    def note(self, now: float, tokens: int) -> None:
        """Tokens have come at this time, in seconds."""
        answers = self.answers if self.may_follow else 0
        if self.config.draft_tokens is None and self.drafter.cost_ms(1):
            self._evidence.note(now, tokens, answers, self._is_making, self._expected)
        if self._shared_rate:
            self._shared.note(now, tokens, answers, self._is_sharing, self._shared_rate)

    def look(self, answers: int, *, may_follow: bool) -> None:
        """See how many answers are being written, and whether guesses can be sent behind others."""
        self.answers, self.may_follow = answers, may_follow
        if not answers:
            self._evidence.pause()
            self._shared.pause()

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        request = sequence.request
        self._acceptance.end(request.id)
        self._plans.pop(request.id, None)
        if self._trial is not None and self._trial[0] is sequence:
            self._trial = None
        self.drafter.end(request.id, request.client, sequence.tokens)

    # What is asked

    def prepare(self, sequence: Sequence, pace: Pace) -> bool:
        """Have guesses for a sequence; False if its next step is to wait for some."""
        if sequence.guesses:
            return True
        plan = self._plan(sequence, pace)
        self._ask(sequence, self.config.draft_tokens or _LOOK_AHEAD, want="free")
        if sequence.guesses and not (plan.guesses and self._passes_over(sequence)):
            return True
        if plan.guesses:
            want: Want = "any" if plan.streams else "all"
            return self._ask(sequence, plan.guesses, want, plan.piece) is not None or plan.streams
        self._try(sequence, pace)
        return True

    def extend(self, sequence: Sequence, pace: Pace) -> None:
        """Have guesses behind those that have been sent."""
        pending = len(sequence.guesses)
        if sequence.sent < len(sequence.tokens) + pending or pending >= MAX_GUESSES:
            return
        if not pending and not self._plan(sequence, pace).streams:
            return
        room, costs = MAX_GUESSES - pending, self.drafter.cost_ms(1) > 0
        if pending and not (costs and sequence.kind == MODEL):
            self._ask(sequence, min(self.config.draft_tokens or _LOOK_AHEAD, room), want="free")
        if len(sequence.guesses) > pending or not costs:
            return
        if self.config.draft_tokens is not None:
            self._ask(sequence, min(self.config.draft_tokens, room))
            return
        next_ms = self._next_ms
        if count := self._rates.worthwhile(self._next_chances(sequence, room), next_ms):
            self._ask(sequence, count, "any", min(self._rates.piece(next_ms, _MOST_PIECE), count))

    def _plan(self, sequence: Sequence, pace: Pace) -> _Plan:
        """What to ask for that takes time."""
        if self.config.draft_tokens is not None:
            return _Plan(self.config.draft_tokens)
        cost_ms = self.drafter.cost_ms
        if not cost_ms(1):
            return _Plan(0)
        state = len(sequence.tokens), pace, self.answers, self._times.version, self.may_follow
        planned = self._plans.get(sequence.request.id)
        if planned is not None and planned[0] == state:
            return planned[1]
        # Answers that are guessed for and others don't go well together, so all follow what is known of all of them.
        users = self._users(pace)
        key = sequence.request.id if users == 1 else ""
        chances = self._acceptance.chances(key, MODEL, 0, _LOOK_AHEAD, len(sequence.tokens))
        count, rate = self._rates.waiting(users, chances, cost_ms)
        plan = _Plan(count)
        if self.config.asynchronous and self.may_follow:
            next_ms = self._next_ms
            piece = self._rates.piece(next_ms, _MOST_PIECE)
            followed = chances[: self._rates.worthwhile([1.0, *chances], next_ms)]
            streamed = self._rates.streaming(users, followed, piece, cost_ms) if followed else 0.0
            if streamed > rate:
                plan, rate = _Plan(len(followed), True, piece), streamed
        plain = self._rates.plain(pace, users)
        if not self._evidence.allows(users, rate / plain):
            plan, rate = _Plan(0), plain
        self._expected = 1e3 * rate
        self._is_making = plan.guesses > 0
        self._plans[sequence.request.id] = state, plan
        return plan

    def _users(self, pace: Pace) -> int:
        return self.answers or pace.in_flight * pace.rows

    @property
    def _next_ms(self) -> float:
        """What a guess behind another takes."""
        return self.drafter.cost_ms(2) - self.drafter.cost_ms(1)

    def _passes_over(self, sequence: Sequence) -> bool:
        """Drop free guesses that are worse than those of the model would be; what becomes of them is learnt still."""
        if self.config.draft_tokens is not None:
            return False
        free, dear = (
            sum(self._acceptance.chances(sequence.request.id, kind, 0, count, len(sequence.tokens)))
            for kind, count in ((sequence.kind, min(len(sequence.guesses), _COMPARED)), (MODEL, _COMPARED))
        )
        if free >= dear:
            return False
        sequence.passed_over = sequence.kind, len(sequence.tokens), sequence.guesses[0]
        sequence.guesses.clear()
        return True

    def _try(self, sequence: Sequence, pace: Pace) -> None:
        """Now and then, ask for guesses that do not pay by what is known; nobody waits for them."""
        cost = self.drafter.cost_ms(_TRIAL_GUESSES)
        if not cost or self.config.draft_tokens is not None:
            return
        if self._trial is None:
            if self._confirmed < self._next_trial:
                return
            self._trial = sequence, _TRIAL_TRIES
            tokens = cost / _TRIAL_SHARE * self._rates.plain(pace, self._users(pace))
            self._next_trial = self._confirmed + max(_LEAST_TOKENS, int(tokens))
        trying, tries = self._trial
        if trying is sequence:
            is_over = self._ask(sequence, _TRIAL_GUESSES) is not None or tries <= 1
            self._trial = None if is_over else (sequence, tries - 1)

    def _ask(self, sequence: Sequence, count: int, want: Want = "all", piece: int = 1) -> list[int] | None:
        request = sequence.request
        count = min(count, request.max_tokens - sequence.completion - len(sequence.guesses) - 1)
        if count < 1:
            return sequence.guesses
        text = DraftText(request.id, request.client, sequence.tokens, sequence.guesses, request.sampling)
        guesses = self.drafter.guess(text, count, want, piece)
        if guesses is None:
            return None
        if not guesses and want != "free":
            sequence.silence = len(sequence.tokens) + len(sequence.guesses)
        if guesses and not sequence.guesses:
            sequence.kind = self.drafter.kind(request.id)
        sequence.guesses += guesses
        return sequence.guesses

    # What is sent

    def widths(self, group: Line[Sequence], pace: Pace, room: int, others: Line[int] = ()) -> list[int]:
        """How many guesses of each sequence go along with the row of its last token.

        Args:
            group: The sequences of a step, none of whose guesses has been sent.
            pace: Of the answers that are being written.
            room: Most rows of guesses together.
            others: Rows of the other steps of answers that are on their way.
        """
        if self.config.draft_tokens is not None:
            counts = [min(len(sequence.guesses), self.config.draft_tokens) for sequence in group]
            return _within(counts, room)
        if not self._may_share(pace):
            return [0] * len(group)
        each = max(1, _CANDIDATES // len(group))
        lines = ([(chance, i) for chance in self._chances(sequence, each)] for i, sequence in enumerate(group))
        likeliest = islice(merge(*lines, reverse=True), room)
        counts = [0] * len(group)
        best, expected = counts.copy(), float(len(group))
        most = _margin(pace) * self._rates.verified(pace, len(group), expected, others)
        for rows, (chance, i) in enumerate(likeliest, len(group) + 1):
            counts[i] += 1
            expected += chance
            rate = self._rates.verified(pace, rows, expected, others)
            if rate > most:
                best, most = counts.copy(), rate
        if not any(best) and any(counts) and self._confirmed >= self._next_row:
            # It may only seem so: what such a step takes is not learnt from others.
            self._next_row = self._confirmed + len(group) * _LEAST_TOKENS
            best[max(range(len(group)), key=lambda i: self._chances(group[i], 1) or [0.0])] = 1
        return best

    def holds(self, group: Line[Sequence], pace: Pace) -> bool:
        """Whether it is better to wait for the tokens being sampled, and verify guesses after them, than to run ahead.

        Asked of sequences of a step that can run ahead: none of their guesses has been sent. They do the same, since
        those that come back at different times go on in steps of their own, and more steps take longer.
        """
        if self.config.draft_tokens is not None:
            return any(sequence.guesses for sequence in group)
        if any(sequence.silence < len(sequence.tokens) and self._plan(sequence, pace).streams for sequence in group):
            return True  # guesses are to follow
        if not any(sequence.guesses for sequence in group) or not self._may_share(pace):
            return False
        lost, price = self._prices(pace)
        won = 0.0
        for sequence in group:
            _, *chances = self._chances(sequence, _HELD_FOR) or [0.0]  # the first is of the token being sampled
            won += sum(max(0.0, chance - price) for chance in chances)
        return won > lost * len(group)

    def _may_share(self, pace: Pace) -> bool:
        """Whether guesses may hold up the steps of other answers, if there are any."""
        if pace.in_flight == 1:
            self._shared_rate = 0.0
            return True
        users = self._users(pace)
        self._is_sharing = self._shared.allows(users, _WORTHWHILE_AMONG_OTHERS)
        gain = _WORTHWHILE_AMONG_OTHERS if self._is_sharing else 1.0
        self._shared_rate = 1e3 * gain * self._rates.plain(pace, users)
        return self._is_sharing

    def width_ahead(self, sequence: Sequence, room: int) -> int:
        """How many guesses to send behind those that are still being verified; 0: none."""
        sent = sequence.sent - len(sequence.tokens)
        if not self.config.asynchronous or not 0 <= sent < len(sequence.guesses):
            return 0
        chances = self._chances(sequence, sent + room)[sent:]
        if not chances:
            return 0
        width, before = 0, 0.0
        for rows, chance in enumerate(chances, 1):
            step = self._times.answers_ms(rows)
            if not self._rates.is_worth_following(chance, step - before):
                break
            width, before = rows, step
        return min(width, self.config.draft_tokens or width)

    def _next_chances(self, sequence: Sequence, most: int) -> list[float]:
        """That all guesses so far are right, and each time one more."""
        pending = len(sequence.guesses)
        return [1.0, *self._chances_of(sequence, pending + most - 1)][pending:]

    def _chances(self, sequence: Sequence, most: int) -> list[float]:
        return self._chances_of(sequence, min(len(sequence.guesses), most))

    def _chances_of(self, sequence: Sequence, count: int) -> list[float]:
        return self._acceptance.chances(sequence.request.id, sequence.kind, sequence.depth, count, len(sequence.tokens))

    def _prices(self, pace: Pace) -> tuple[float, float]:
        """In tokens: what a sequence loses that does not run ahead, and what a row of a guess costs."""
        version, prices = self._priced.get(pace, (-1, (0.0, 0.0)))
        if version != self._times.version:
            tokens = pace.in_flight * pace.rows
            plain, more = (self._rates.verified(pace, rows, pace.rows) for rows in (pace.rows, pace.rows + 1))
            lost = self._rates.saved_ms(pace) / self._rates.round_ms(pace, pace.rows)
            lost += (_margin(pace) - WORTHWHILE) * pace.in_flight
            prices = lost, tokens * (WORTHWHILE * plain / more - 1)
            self._priced[pace] = self._times.version, prices
        return prices


def _margin(pace: Pace) -> float:
    """Guesses must bring so many times the tokens a second of none."""
    return WORTHWHILE if pace.in_flight == 1 else _WORTHWHILE_AMONG_OTHERS


def _within(counts: list[int], room: int) -> list[int]:
    """The counts, the last ones cut where there is no room for all."""
    left, cut = room, []
    for count in counts:
        cut.append(min(count, left))
        left -= cut[-1]
    return cut
