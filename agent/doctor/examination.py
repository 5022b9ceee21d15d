"""All topics at once, each with a time limit; whatever goes wrong in one is a line of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.doctor import (
    cache,
    clock,
    devices,
    firewall,
    keys,
    memory,
    multicast,
    ports,
    power,
    processor,
    reach,
    versions,
)
from agent.doctor.check import Check
from shards.progress import Progress, silent

_REPORT = "This is a defect of the doctor: please report it."


@dataclass(frozen=True, slots=True)
class Topic:
    """Something to look at."""

    name: str
    check: Callable[[], Sequence[Check]]
    seconds: float = 15.0
    """How long it may take."""


def topics(head: tuple[str, int] | None) -> tuple[Topic, ...]:
    """Everything there is to look at; the way to a head only if its host and control port are given."""
    usual = (
        Topic("versions", versions.check),
        Topic("processor", processor.check),
        Topic("devices", devices.check, seconds=30.0),
        Topic("memory", memory.check),
        Topic("power", power.check),
        Topic("keys", keys.check),
        Topic("cache", cache.check),
        Topic("ports", ports.check),
        Topic("multicast", multicast.check),
        Topic("firewall", firewall.check),
        Topic("clock", clock.check),
    )
    return usual if head is None else (*usual, Topic("head", lambda: reach.check(*head)))


def examine(topics: Sequence[Topic], progress: Progress = silent) -> list[Check]:
    """Look at all topics at the same time; the lines come in the topics' order. `progress` is told in topics."""
    heard: queue.SimpleQueue[tuple[int, Sequence[Check]]] = queue.SimpleQueue()
    began = time.monotonic()
    for number, topic in enumerate(topics):
        # daemon: one that hangs in the operating system does not keep the command from ending
        threading.Thread(target=_look, args=(number, topic, heard), name=f"doctor: {topic.name}", daemon=True).start()
    found: dict[int, Sequence[Check]] = {}
    while len(found) < len(topics):
        progress("examining this PC", len(found), len(topics))
        next_late = min((n for n in range(len(topics)) if n not in found), key=lambda n: topics[n].seconds)
        late = topics[next_late]
        try:
            number, checks = heard.get(timeout=max(0.0, began + late.seconds - time.monotonic()))
        except queue.Empty:
            number, checks = next_late, [Check(late.name, "fault", f"no result within {late.seconds:.0f} s", _REPORT)]
        found.setdefault(number, checks)
    progress("examining this PC", len(topics), len(topics))
    return [check for number in range(len(topics)) for check in found[number]]


def _look(number: int, topic: Topic, heard: queue.SimpleQueue[tuple[int, Sequence[Check]]]) -> None:
    try:
        checks = topic.check()
    except Exception as error:
        checks = [Check(topic.name, "fault", f"this check failed: {type(error).__name__}: {error}", _REPORT)]
    heard.put((number, checks))
