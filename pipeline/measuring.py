"""Finding out, in a process of its own, what the parts of a model cost on this computer."""

from __future__ import annotations

from pathlib import Path
from queue import Empty, SimpleQueue

from pipeline import stages
from pipeline.control import FromStage, Measure, Measured, Progress
from pipeline.stage_child import StageChild
from shards.errors import StageError
from shards.manifest import Manifest
from shards.profile import CostProfile
from shards.progress import Progress as Report
from shards.runtime import StageConfig

_POLL_SECONDS = 0.2
"""How often the wait looks up, because on Windows a Ctrl-C does not interrupt it."""


def cost_profile(config: StageConfig, manifest: Manifest, cache: Path, progress: Report) -> CostProfile:
    """What the parts of a package's model cost in stages like `config`: from the cache, or measured now and kept there.

    Raises:
        StageError: the measurement failed.
    """
    import openvino as ov

    from shards import findings
    from shards.device import check_device

    core = ov.Core()
    check_device(core, config.device)
    file = findings.file_of("costs", core, config, manifest, cache)
    found = findings.recall(file, CostProfile)
    if found is None:
        found = _measure(config, cache, progress)
        findings.keep(file, found)
    return found


def _measure(config: StageConfig, cache: Path, progress: Report) -> CostProfile:
    events: SimpleQueue[FromStage | StageError] = SimpleQueue()
    child = StageChild("measuring", Measure(config=config, cache=cache), lambda _, heard: events.put(heard))
    try:
        while True:
            try:
                heard = events.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            match heard:
                case Progress(what=what, done=done, total=total):
                    progress(what, done, total)
                case Measured(profile=profile):
                    return profile
                case StageError():
                    raise heard
    finally:
        stages.stop([child])
