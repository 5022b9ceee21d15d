"""The files of the settings folder: each is a secret, or a list of whom to trust."""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent import paths, secure_file
from agent.doctor.check import Check
from shards.errors import ConfigurationError

_TOPIC = "keys"


def check() -> list[Check]:
    """Look at this user's settings."""
    return judge(paths.config_folder())


def judge(folder: Path) -> list[Check]:
    """Whether the files of a folder are their owner's alone, and whole."""
    if not folder.exists():
        return [Check(_TOPIC, "ok", "none yet: they are made when they are needed")]
    checks = []
    if os.name == "posix" and folder.stat().st_mode & 0o022:
        checks.append(Check(_TOPIC, "fault", f"other users can write in {folder}", f"chmod 700 {folder}"))
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    for path in files:
        try:
            text = secure_file.read(path) or ""
            if path.suffix == ".json":
                json.loads(text)
        except ConfigurationError as error:
            checks.append(Check(_TOPIC, "fault", f"{path}: {error.what}", error.hint or f"sudo chown $USER {path}"))
        except ValueError:
            step = "Put back a copy of it; or move it away, and begin anew: this PC has to be let in again then."
            checks.append(Check(_TOPIC, "fault", f"{path}: the file is damaged", step))
    return checks or [Check(_TOPIC, "ok", f"{len(files)} in {folder}, for this user alone")]
