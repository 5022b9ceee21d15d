"""Numbers for people. Every text is at most 9 characters, whatever the number; what is not known is a dash."""

from __future__ import annotations

import math
import time
from typing import TypeGuard

UNKNOWN = "–"

_STEPS = ("", "k", "M", "G", "T", "P")
_SMALLEST = 0.005
"""Below it two decimals show nothing."""


def size(number: float | None) -> str:
    """Bytes: `512 B`, `1.5 kB`, `22 GB`; a unit is a power of 1000, as in the rest of the project."""
    return _scaled(number, "B")


def rate(number: float | None) -> str:
    """Bytes a second: `118 MB/s`."""
    return _scaled(number, "B/s")


def count(number: float | None) -> str:
    """How many: `950`, `8.2k`, `131k`."""
    return _scaled(number, "", gap="")


def duration(seconds: float | None) -> str:
    """A time that passed: `4 s`, `3:07 min`, `1:04 h`, `12 d`."""
    if not _is_known(seconds) or seconds < 0:
        return UNKNOWN
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    days = whole // 86_400
    return f"{days} d" if days < 100_000 else ">99999 d"


def milliseconds(number: float | None) -> str:
    """Milliseconds: `0.04 ms`, `3.2 ms`, `140 ms`, `2.5 s`."""
    if not _is_known(number) or number < 0:
        return UNKNOWN
    if number < _SMALLEST:
        return "0 ms"
    if number < 0.95:
        return f"{number:.2f} ms"
    return f"{_short(number)} ms" if number < 999.5 else _seconds(number / 1000)


def tokens_per_second(number: float | None) -> str:
    """Tokens a second, without the unit: `0.42`, `31.5`, `950`, `1.2k`."""
    if not _is_known(number) or number < 0:
        return UNKNOWN
    if number >= 99.95:
        return count(number)
    return f"{number:.2f}" if _SMALLEST <= number < 0.95 else f"{number:.1f}"


def percent(part: float | None) -> str:
    """Part of one: `37 %`."""
    if not _is_known(part):
        return UNKNOWN
    whole = round(max(-9.99, min(part, 99.99)) * 100)
    return f"{whole} %"


def change(new: float | None, old: float | None) -> str:
    """By how much a number grew or fell: `+12 %`, `-8 %`, `same`; more than tenfold as `x 14`."""
    if not _is_known(new) or not _is_known(old) or old <= 0 or new < 0:
        return UNKNOWN
    times = new / old
    if times >= 10:
        return f"x {count(times)}"
    whole = round((times - 1) * 100)
    return f"{whole:+} %" if whole else "same"


def temperature(celsius: float | None) -> str:
    """Degrees: `71 °C`."""
    return f"{celsius:.0f} °C" if _is_known(celsius) and -274 < celsius < 10_000 else UNKNOWN


def clock(seconds_since_1970: float) -> str:
    """Time of day where the reader is: `14:03:59`."""
    return _local(seconds_since_1970, "%H:%M:%S")


def day(seconds_since_1970: float) -> str:
    """The day where the reader is: `30 Nov`; only where a text spans several days."""
    return _local(seconds_since_1970, "%d %b")


def _local(seconds: float, pattern: str) -> str:
    try:
        return time.strftime(pattern, time.localtime(seconds))
    except (OverflowError, OSError, ValueError):  # a clock that is no clock
        return UNKNOWN


def _is_known(number: float | None) -> TypeGuard[float]:
    return number is not None and math.isfinite(number)


def _scaled(number: float | None, unit: str, gap: str = " ") -> str:
    if not _is_known(number) or number < 0:
        return UNKNOWN
    index = 0
    while round(number, 1 if number < 9.95 else 0) >= 1000 and index < len(_STEPS) - 1:
        number, index = number / 1000, index + 1
    if number >= 999.5:
        number = 999.0  # nobody has this much
    text = _short(number) if index or number % 1 else f"{number:.0f}"
    return f"{text}{gap}{_STEPS[index]}{unit}".rstrip()


def _short(number: float) -> str:
    """At most three digits."""
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def _seconds(number: float) -> str:
    return f"{_short(number)} s" if number < 99.5 else duration(number)
