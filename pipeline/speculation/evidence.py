"""Whether guesses that take time pay, by what was expected of them and what came of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

WORTHWHILE = 1.03
"""Guesses must bring so many times the tokens a second of none: times and chances lie a bit."""
_CLEAR = 1.3
"""Where they bring so many times as many, what was never measured without them is believed."""

_WINDOW = 16
"""Tokens of each answer that make a measurement."""
_FIRST = 3
"""So many measurements with guesses are made before anything is concluded, and the best of them counts: kernels are
made at the first use of each number of rows, which takes long and comes once."""
_NEW = 0.5
"""Weight of the latest measurement."""
_TRIES = 0.01
"""Share of the tokens a second that trying the worse way again may cost at first."""
_DOUBLINGS = 3
"""How often a try that was in vain makes the time until the next one twice as long."""


@dataclass(slots=True)
class _Measurement:
    """One that is being made: of stretches of time in which the same went on."""

    tokens: int = 0
    expected: float = 0.0
    """Seconds that they should have taken."""
    seconds: float = 0.0
    """That they have taken."""


@dataclass(slots=True)
class _Record:
    """What is known of about so many answers."""

    truth: dict[bool, float] = field(default_factory=dict)
    """Of the tokens a second that were expected with and without guesses, the part that came, as far as measured."""
    current: dict[bool, _Measurement] = field(default_factory=lambda: defaultdict(_Measurement))
    """With and without guesses."""
    made: int = 0
    """Measurements with guesses."""
    since: int = 0
    """Measurements without guesses since the last one with."""
    in_vain: int = -1
    """How often guesses were tried and did not pay, besides the first time."""


class Evidence:
    """Compares what was expected of answers, with and without guesses, with what came.

    Step times and chances tell what guesses should bring. What they leave out is all that the making of guesses takes
    from others: the processors of a stage on this PC, answers that would have shared a step. So what is expected is
    corrected by what came of it the last times. Guesses that should pay are tried; if they do not, they are tried
    again more and more seldom, or when by now much more is expected of them.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = defaultdict(_Record)
        self._load, self._is_making = 0, False
        self._last: float | None = None
        """When tokens came last, in seconds; None: what passes from then on does not count."""

    def note(self, now: float, tokens: int, answers: int, is_making: bool, expected: float) -> None:
        """Tokens have come.

        Args:
            now: Seconds.
            tokens: How many.
            answers: That are being written; 0: there is more at work than these.
            is_making: Whether guesses are made for them.
            expected: Tokens a second of all answers that this should give.
        """
        load, last, self._last = _load(answers), self._last, now
        if (load, is_making) != (self._load, self._is_making) or last is None or not load:
            self._load, self._is_making = load, is_making
            return
        record = self._records[load]
        current = record.current[is_making]
        current.tokens += tokens
        current.expected += tokens / expected
        current.seconds += max(0.0, now - last)
        if current.tokens < _WINDOW * answers or not current.seconds:
            return
        truth = current.expected / current.seconds
        before = record.truth.get(is_making, truth)
        record.made += is_making
        is_first = is_making and record.made <= _FIRST
        record.truth[is_making] = max(before, truth) if is_first else before + _NEW * (truth - before)
        if not is_making:
            record.since += 1
        elif record.since:  # there were none, and they have been tried again
            record.since = 0
            record.in_vain += 1
        record.current[is_making] = _Measurement()

    def pause(self) -> None:
        """Nothing is being written: what passes until something is, is nobody's time."""
        self._last = None

    def allows(self, answers: int, gain: float) -> bool:
        """Whether to make guesses for so many answers, if they are expected to bring `gain` times the tokens."""
        if gain < WORTHWHILE:
            return False
        record = self._records[_load(answers)]
        if record.made < _FIRST:
            return True
        gain *= record.truth[True] / record.truth.get(False, 1.0)
        if gain >= (WORTHWHILE if False in record.truth else _CLEAR):
            return True
        patience = max(1 - gain, 0.0) / _TRIES * 2.0 ** min(max(record.in_vain, 0), _DOUBLINGS)
        return False in record.truth and record.since >= patience


def _load(answers: int) -> int:
    """Which numbers of answers are measured as one, or nothing would be known where one ends and another begins all
    the time: 0, 1, 2, 3 to 4, 5 to 8 and so on."""
    return (answers - 1).bit_length() + 1 if answers else 0
