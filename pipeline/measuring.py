"""Finding out, in a process of its own, what the parts of a model cost on this computer."""

from __future__ import annotations

import threading
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

_KIND = "costs-2"
"""Name of the findings; another one for what is measured anew, since an old one has not all of it."""

_POLL_SECONDS = 0.2
"""How often the wait looks up, because on Windows a Ctrl-C does not interrupt it."""


def cost_profile(
    config: StageConfig,
    manifest: Manifest,
    cache: Path,
    progress: Report,
    *,
    again: bool = False,
    cancel: threading.Event | None = None,
) -> CostProfile:
    """What the parts of a package's model cost in stages like `config`: from the cache, or measured now and kept there.

    Args:
        config: Like what; its own layers do not matter.
        manifest: Of the package.
        cache: Folder of earlier findings.
        progress: Told how measuring goes.
        again: Measure, whatever was found earlier.
        cancel: Set to end it early.

    Raises:
        StageError: the measurement failed, or `cancel` was set.
    """
    import openvino as ov

    from shards import findings
    from shards.device import check_device

    core = ov.Core()
    if config.engine != "llamacpp":
        check_device(core, config.device)
    file = findings.file_of(_KIND, core, config, manifest, cache)
    found = None if again else findings.recall(file, CostProfile)
    if found is None:
        found = _measure(config, cache, progress, cancel)
        findings.keep(file, found)
    return found


def _measure(config: StageConfig, cache: Path, progress: Report, cancel: threading.Event | None) -> CostProfile:
    events: SimpleQueue[FromStage | StageError] = SimpleQueue()
    child = StageChild("measuring", Measure(config=config, cache=cache), lambda _, heard: events.put(heard))
    try:
        while True:
            if cancel is not None and cancel.is_set():
                raise StageError("the measurement was cancelled", where=child.name)
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
