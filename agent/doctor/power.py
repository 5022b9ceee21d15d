"""Mains or battery."""

from __future__ import annotations

from agent import paths
from agent.doctor.check import Check
from agent.fleet.control.messages import Condition
from agent.fleet.node.hardware import condition

_TOPIC = "power"


def check() -> list[Check]:
    """Look at this PC."""
    return [judge(condition(None, paths.cache_folder()))]


def judge(condition: Condition) -> Check:
    """Whether the PC can give what it has."""
    if condition.battery is None:
        return Check(_TOPIC, "ok", "on mains, no battery")
    if condition.on_mains:
        return Check(_TOPIC, "ok", f"on mains, battery at {condition.battery:.0%}")
    return Check(
        _TOPIC,
        "warning",
        f"on battery ({condition.battery:.0%}): the PC computes slower, and slows down every stage of its chain",
        "Plug it in.",
    )
