from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent import secure_file
from shards.errors import ConfigurationError

posix = os.name == "posix"


def test_a_file_is_created_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings" / "deeper" / "key"
    assert secure_file.read(path) is None
    assert secure_file.create(path, "first")
    assert not secure_file.create(path, "second")
    assert secure_file.read(path) == "first"
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]  # no traces
    if posix:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    secure_file.replace(path, "first, and longer")
    secure_file.replace(path, "second")
    assert secure_file.read(path) == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]
    if posix:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("store", [secure_file.create, secure_file.replace])
def test_a_file_that_cannot_be_stored_is_named(tmp_path: Path, store: object) -> None:
    (tmp_path / "file").write_text("in the way", "utf-8")
    assert callable(store)
    with pytest.raises(ConfigurationError) as caught:
        store(tmp_path / "file" / "key", "secret")
    assert str(tmp_path / "file" / "key") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_nothing_is_kept_in_a_folder_others_can_write_in(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    if posix:
        with pytest.raises(ConfigurationError, match="chmod 700"):
            secure_file.create(folder / "key", "secret")
        assert not list(folder.iterdir())
    folder.chmod(0o700)
    assert secure_file.create(folder / "key", "secret")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_others_have_rights_on_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    secure_file.create(path, "secret")
    path.chmod(mode)
    if posix:
        with pytest.raises(ConfigurationError, match="chmod 600"):
            secure_file.read(path)
    path.chmod(0o600)
    assert secure_file.read(path) == "secret"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_that_windows_programs_write_do_not_matter(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "key"
    path.write_text("schlüssel", encoding)
    path.chmod(0o600)
    assert secure_file.read(path) == "schlüssel"


@pytest.mark.parametrize("content", [b"\xff\xff", b"\xff\xfe1", b"x" * (2**20 + 1)])
def test_what_is_not_text_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"not text|larger"):
        secure_file.read(path)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        secure_file.read(tmp_path)
