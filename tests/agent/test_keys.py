from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent import keys
from shards.errors import ConfigurationError


@pytest.fixture
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys.paths, "config_folder", lambda: tmp_path / "settings")
    return tmp_path / "settings"


def test_a_key_is_made_once_and_for_its_owner_alone(config_folder: Path) -> None:
    key, path = keys.own_key()
    assert len(key) >= 40
    assert path.parent == config_folder
    assert keys.own_key() == (key, path)
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n", "utf-8")
    path.chmod(0o644)
    if os.name == "posix":
        with pytest.raises(ConfigurationError, match="chmod 600"):
            keys.read_key(path)
    path.chmod(0o600)
    assert keys.read_key(path) == "secret"


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words\n", b"\xff\xfe"])
def test_what_is_not_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        keys.read_key(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing-key"):
        keys.read_key(tmp_path / "missing-key")
