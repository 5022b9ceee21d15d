"""Where this program keeps its files on a user's PC."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_NAME = "edge-agent"


def cache_folder() -> Path:
    """Things that can be made or fetched again: downloaded models, the demo's package."""
    return platformdirs.user_cache_path(_NAME, appauthor=False)


def tuning_folder() -> Path:
    """What tuning found to be fastest, by model and machine."""
    return cache_folder() / "tuning"


def config_folder() -> Path:
    """Things that are this user's own: keys."""
    return platformdirs.user_config_path(_NAME, appauthor=False)


def data_folder() -> Path:
    """Things that are this user's own and cannot be made again: conversations."""
    return platformdirs.user_data_path(_NAME, appauthor=False)
