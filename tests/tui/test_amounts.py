import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import amounts

_ANY = st.one_of(st.none(), st.floats(), st.integers(-(10**30), 10**30))
_FORMATS = (
    amounts.size,
    amounts.rate,
    amounts.count,
    amounts.duration,
    amounts.milliseconds,
    amounts.tokens_per_second,
    amounts.percent,
    amounts.temperature,
)


@given(_ANY)
def test_every_amount_is_narrow(number: float | None) -> None:
    for formatted in (*(form(number) for form in _FORMATS), amounts.change(number, 3.0), amounts.change(3.0, number)):
        assert 0 < len(formatted) <= 9
        assert formatted.isprintable()


@given(st.floats())
def test_times_of_day_are_narrow(seconds: float) -> None:
    assert len(amounts.clock(seconds)) <= 9
    assert len(amounts.day(seconds)) <= 9


@given(st.floats(0, 1e15), st.floats(0, 1e15))
def test_sizes_grow_as_the_bytes_do(one: float, other: float) -> None:
    assert (one <= other) <= (_bytes(amounts.size(one)) <= _bytes(amounts.size(other)))


@given(st.floats(1, 1e15))
def test_a_size_is_right_to_a_twentieth(number: float) -> None:
    assert math.isclose(_bytes(amounts.size(number)), number, rel_tol=0.06)


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (512, "512 B"), (999, "999 B"), (1000, "1.0 kB"), (999_600, "1.0 MB"), (22e9, "22 GB"), (None, "–")],
)
def test_sizes(number: float | None, text: str) -> None:
    assert amounts.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (187, "3:07 min"), (3840, "1:04 h"), (12 * 86_400, "12 d"), (-1, "–")],
)
def test_durations(seconds: float, text: str) -> None:
    assert amounts.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0 ms"), (0.04, "0.04 ms"), (3.21, "3.2 ms"), (140, "140 ms"), (2500, "2.5 s"), (6e4, "60 s")],
)
def test_milliseconds(number: float, text: str) -> None:
    assert amounts.milliseconds(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.0, "0.0"), (0.42, "0.42"), (31.54, "31.5"), (950, "950"), (1234, "1.2k")]
)
def test_tokens_per_second(number: float, text: str) -> None:
    assert amounts.tokens_per_second(number) == text


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [
        (30, 25, "+20 %"),
        (20, 25, "-20 %"),
        (25, 25.01, "same"),
        (400, 25, "x 16"),
        (25, 0, "–"),
        (25, None, "–"),
        (0, 25, "-100 %"),
    ],
)
def test_changes(new: float, old: float | None, text: str) -> None:
    assert amounts.change(new, old) == text
