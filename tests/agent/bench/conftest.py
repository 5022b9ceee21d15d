"""What tests of the benches share."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharing import cache_folder

from agent import paths


@pytest.fixture(scope="session")
def measurements() -> Path:
    """Where the tests' benches keep what they measure: it is not for those of this user."""
    return cache_folder() / "measurements"


@pytest.fixture(autouse=True)
def measured_once(measurements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_folder", lambda: measurements)
