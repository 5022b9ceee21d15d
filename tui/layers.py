"""Layers of a stage for people. An edge is a number of layers, whole or with a half: that is behind an attention."""

from __future__ import annotations

from math import floor
from typing import Annotated

from pydantic import Field

Edge = Annotated[float, Field(allow_inf_nan=False)]


def ends(begin: Edge, end: Edge) -> tuple[str, str]:
    """First and last layer between two edges: `0`, `9`; one that is divided is a half: `0`, `11½`."""
    return count(begin), count(end if end % 1 else end - 1)


def count(layers: Edge) -> str:
    """A number of layers: `12`, `11½`."""
    return f"{floor(layers)}{'½' if layers % 1 else ''}"
