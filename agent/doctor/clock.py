"""The clock. The fleet's own timing does not depend on it; logs, certificates and package indexes do."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from agent.doctor.check import Check

_TOPIC = "clock"
_DAY = 86_400
_STEP = "Set the clock, and let the system keep it (NTP)."


def check() -> list[Check]:
    """Compare with when this program was installed."""
    return [judge(time.time(), Path(__file__).stat().st_mtime)]


def judge(now: float, installed: float) -> Check:
    """Whether the time can be right; both in seconds since 1970."""
    said = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if now < installed - _DAY:
        return Check(_TOPIC, "warning", f"it is {said} here, which is before this program was installed", _STEP)
    return Check(_TOPIC, "ok", said)


def judge_difference(seconds: float) -> Check:
    """What it means that the head's clock is that much ahead of ours."""
    if abs(seconds) > 60:
        ahead = "ahead of" if seconds > 0 else "behind"
        what = f"the head's clock is {abs(seconds):.0f} s {ahead} this one: the fleet works, but logs do not match"
        return Check(_TOPIC, "warning", what, _STEP)
    return Check(_TOPIC, "ok", "the head's clock agrees")
