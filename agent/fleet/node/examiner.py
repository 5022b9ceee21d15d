"""The doctor's visit to a node at work, for people at its head."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from agent import recent_log
from agent.doctor import devices
from agent.doctor.check import Check
from agent.doctor.examination import Topic, examine, topics
from agent.doctor.system_devices import system_devices
from agent.fleet.control.messages import (
    LONGEST_TEXT,
    MOST_FINDINGS,
    MOST_LOG_LINES,
    Examined,
    Finding,
    FromNode,
    Hardware,
    TaskFailed,
)

_SECONDS = 12.0
"""The longest that a topic may take: a person waits."""

_OF_HEADS = "ports"

_log = logging.getLogger(__name__)


class Examiner:
    """Looks at this PC, on a thread of its own; who asks meanwhile gets what comes of it.

    Args:
        hardware: What the PC has; looked up before, since OpenVINO is not to be loaded beside stages at work.
    """

    def __init__(self, hardware: Callable[[], Hardware]) -> None:
        self._hardware = hardware
        self._waiting: dict[str, Callable[[FromNode], None]] = {}
        self._lock = threading.Lock()

    def examine(self, task: str, tell: Callable[[FromNode], None]) -> None:
        """Begin, and `tell` what was found; does not wait."""
        with self._lock:
            self._waiting[task] = tell
            if len(self._waiting) > 1:
                return
        threading.Thread(target=self._run, name="examining", daemon=True).start()

    def topics(self) -> tuple[Topic, ...]:
        """What is looked at: all that the doctor knows, but what concerns heads only."""

        def look_at_devices() -> list[Check]:
            return devices.judge(self._hardware().devices, system_devices())

        return tuple(
            replace(
                topic,
                check=look_at_devices if topic.name == "devices" else topic.check,
                seconds=min(topic.seconds, _SECONDS),
            )
            for topic in topics(None)
            if topic.name != _OF_HEADS
        )

    def _run(self) -> None:
        answer: Examined | TaskFailed
        try:
            answer = self._look()
        except Exception as error:
            _log.exception("a defect of edge-agent, please report it: this PC cannot be examined")
            answer = TaskFailed.of("", error)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for task, tell in waiting.items():
            tell(answer.model_copy(update={"task": task}))

    def _look(self) -> Examined:
        checks = tuple(
            Finding(
                topic=check.topic,
                status=check.status,
                what=_text(check.what),
                next_step=None if check.next_step is None else _text(check.next_step),
            )
            for check in examine(self.topics())[:MOST_FINDINGS]
        )
        return Examined(task="", checks=checks, log=tuple(map(_text, recent_log.lines()[-MOST_LOG_LINES:])))


def _text(text: str) -> str:
    """What fits a message: file names, say, need not be text."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
