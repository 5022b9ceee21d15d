"""The chat pane where nothing can be written."""

from pathlib import Path

import pytest
from scripted_chat import ChatApp, Scripted, end, until


async def test_a_disk_that_takes_nothing_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatApp, "NOTIFICATION_TIMEOUT", 600.0)  # what was said can still be counted
    folder = tmp_path / "conversations"
    folder.write_text("a file is in the place of the folder")
    app = ChatApp(folder, Scripted(["one", end()], ["two", end()]))

    def said() -> int:
        return sum("cannot be written" in note.message for note in app._notifications)

    async with app.run_test() as pilot:
        for answer in ("one", "two"):
            await pilot.press("h", "i", "enter")
            await until(pilot, lambda answer=answer: answer in app.said)
            await until(pilot, lambda: said() > 0)
            await pilot.pause(0.3)
        assert said() == 1
        folder.unlink()
        await pilot.press("h", "i")
        await until(pilot, lambda: folder.is_dir() and any(folder.glob("*.json")))
