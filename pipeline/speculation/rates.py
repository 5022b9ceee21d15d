"""What answers gain by guesses, in tokens a second, as far as step times, links and chances tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from pipeline.pacing import Pace
from pipeline.step_times import StepTimes

_LEAST_MS = 1e-3
_ALIKE = 4
"""So many steps of a lone answer in a row have as many rows, where they have guesses, and change the shape once."""
_HEAD_MS = 0.5
"""What the head itself takes from a result to the next step."""


class Rates:
    """Tokens per millisecond, and the times behind them, of answers written at a pace.

    A round of an answer is its row's way through the chain and back. The answers of a pace share the stages, so a
    round is not shorter than the slowest stage's work for all of them.

    Args:
        times: Of the chain.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def round_ms(self, pace: Pace, rows: int) -> float:
        """A round, if each step has so many rows."""
        return max(self._times.round_ms(pace.in_flight, rows), _LEAST_MS)

    def saved_ms(self, pace: Pace) -> float:
        """What running ahead saves of a round: the tail's token goes to the first stage, not by the head."""
        idle = self.round_ms(pace, pace.rows) - pace.in_flight * self._times.answers_ms(pace.rows)
        return min(max(0.0, idle), self._times.detour_ms + _HEAD_MS)

    def plain(self, pace: Pace, users: int) -> float:
        """Of so many answers that run ahead, without guesses."""
        return users / max(self.round_ms(pace, pace.rows) - self.saved_ms(pace), _LEAST_MS)

    def verified(self, pace: Pace, rows: int, tokens: float, others: Sequence[int] = ()) -> float:
        """Of all answers, if a step of so many rows brings so many tokens.

        Where a stage takes longer for it than for the steps before and after, the next stage waits for it, and then
        that one for the next: the round gets as long as if all steps were like it. Rows that the step before it had not
        cost a change of shape besides.

        Args:
            pace: Of the answers.
            rows: Of the step.
            tokens: That it is expected to bring.
            others: Rows of other steps on their way; those of the pace that are not are taken to be as it says.
        """
        rest = [*others, *(pace.rows for _ in range(pace.in_flight - 1 - len(others)))][: pace.in_flight - 1]
        change = self._times.change_ms(rows) if rows > pace.rows else 0.0
        if pace.in_flight == 1:
            change /= _ALIKE
        work = change + sum(self._times.answers_ms(count) for count in (rows, *rest))
        longest = self._times.way_ms(self._times.answers_ms(max(rows, *rest, 0)) + change)
        return (tokens + pace.rows * len(rest)) / max(work, longest, _LEAST_MS)

    def waiting(self, users: int, chances: Sequence[float], cost_ms: Callable[[int], float]) -> tuple[int, float]:
        """Of answers whose rows wait for guesses: the best number of these, and the rate.

        They do not come back together, so each is taken to have its steps alone.

        Args:
            users: How many answers there are.
            chances: That 1, 2, ... guesses come true.
            cost_ms: Time until so many guesses are there.
        """
        best, most, won = 0, 0.0, 0.0
        for count, chance in enumerate(chances, 1):
            won += chance
            step = self._times.answers_ms(1 + count)
            rate = users * (1 + won) / max(users * step, self._times.way_ms(step) + cost_ms(count), _LEAST_MS)
            if rate > most:
                best, most = count, rate
        return best, most

    def streaming(self, users: int, chances: Sequence[float], piece: int, cost_ms: Callable[[int], float]) -> float:
        """Of answers whose rows leave at once, and guesses after them as they are made.

        A wrong guess shows when the row before it is back, so a round takes longer only by what comes true. But all
        guesses that are sent meanwhile take their time of the stages.

        Args:
            users: How many answers there are.
            chances: That 1, 2, ... guesses come true, as far as any are sent.
            piece: How many are sent at a time.
            cost_ms: Time until so many are there.
        """
        step, more = self._times.answers_ms(1), self._times.answers_ms(piece)
        first, *others = chances[::piece]
        work = users * (step + (1 + len(others)) * more)
        next_ms = max(more, cost_ms(2 * piece) - cost_ms(piece))
        alone = self._times.way_ms(step) + first * max(more, cost_ms(piece)) + sum(others) * next_ms
        return users * (1 + sum(chances)) / max(work, alone, _LEAST_MS)

    def piece(self, next_ms: float, most: int) -> int:
        """Guesses to send at a time, made in `next_ms` each, so that the slowest stage keeps up with them."""
        return next((count for count in range(1, most) if self._times.answers_ms(count) <= count * next_ms), most)

    def is_worth_following(self, chance: float, cost_ms: float) -> bool:
        """Whether rows that bring something with this chance are worth what they take, where the chain is idle.

        What is won is a round less; what is lost, if something else is to be done meanwhile, is half their time.
        """
        won = self._times.way_ms(self._times.answers_ms(1)) - self._times.answers_ms(1)
        return chance * won > (1 - chance) * cost_ms / 2

    def worthwhile(self, chances: Sequence[float], next_ms: float) -> int:
        """How many guesses, made in `next_ms` each, are worth it.

        `chances`: that all before the first of them, before the second, ... are right.
        """
        return sum(1 for _ in takewhile(lambda chance: self.is_worth_following(chance, next_ms), chances))
