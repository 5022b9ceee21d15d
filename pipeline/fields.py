"""Checks of what a frame's header holds: each gives the value, or refuses it by the name of its field.

Field names are joined only when something is refused.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any, NoReturn

import numpy as np

from shards.errors import WireError


def refuse(wanted: str, got: object, *field: str | int) -> NoReturn:
    """Raise the WireError that names the field, what was wanted and what came."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in field)
    raise WireError(f"wanted {wanted}, got {reprlib.repr(got)}", where=f"frame{name}")


def integer(value: object, low: int, high: int, *field: str | int) -> int:
    """A whole number in low..high."""
    if type(value) is not int or not low <= value <= high:
        refuse(f"an integer in {low}..{high}", value, *field)
    return value


def real(value: object, low: float, high: float, *field: str | int) -> float:
    """A number in [low, high]; bounds that are infinite are not values."""
    if type(value) is not float or not low <= value <= high or math.isinf(value):
        refuse(f"a finite number in {low}..{high}", value, *field)
    return value


def logprob(value: object, *field: str | int) -> float:
    """A log probability: -inf is one, and rounding may lift a sure thing a little above 0."""
    if type(value) is not float or not value < 0.01:
        refuse("a log probability", value, *field)
    return value


def array(value: object, longest: int, *field: str | int) -> list[Any]:
    """A list of at most `longest` entries."""
    if type(value) is not list:
        refuse("an array", value, *field)
    if len(value) > longest:
        refuse(f"at most {longest} entries", len(value), *field)
    return value


def record(value: object, width: int, *field: str | int) -> list[Any]:
    """A list of exactly `width` entries."""
    if type(value) is not list or len(value) != width:
        refuse(f"an array of {width} fields", value, *field)
    return value


def tokens(value: object, longest: int, vocabulary: int, *field: str | int) -> tuple[int, ...]:
    """Token ids, packed as little-endian int32."""
    if type(value) is not bytes or len(value) % 4 or len(value) > 4 * longest:
        refuse(f"at most {longest} int32", value, *field)
    ids = np.frombuffer(value, "<i4")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        refuse(f"token ids in 0..{vocabulary - 1}", [int(ids.min()), int(ids.max())], *field)
    return tuple(ids.tolist())
