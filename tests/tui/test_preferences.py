"""What the screen remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui.preferences import Preferences


def test_what_is_saved_is_there_next_time(tmp_path: Path) -> None:
    preferences = Preferences(tmp_path / "new")
    assert (preferences.theme, preferences.url) == (None, None)
    preferences.theme, preferences.url = "textual-light", "http://pc-2:8114"
    preferences.save()
    again = Preferences(tmp_path / "new")
    assert (again.theme, again.url) == ("textual-light", "http://pc-2:8114")


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b'{"theme": 3, "url": null}', b"\xff\xfe"])
def test_a_damaged_file_is_done_without(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "screen.json").write_bytes(text)
    preferences = Preferences(tmp_path)
    assert (preferences.theme, preferences.url) == (None, None)


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    preferences = Preferences(tmp_path / "file" / "folder")
    preferences.save()
    assert (tmp_path / "file").is_file()
