from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from chat_texts import END, conversations
from hypothesis import given, settings

from tui.chat.conversation import Conversation
from tui.chat.errors import ConversationFileError
from tui.chat.store import TRASH_DAYS, ConversationStore


def held(question: str, text: str = "an answer", *, now: float = 1.0) -> Conversation:
    conversation = Conversation()
    conversation.ask(question, now=now)
    answer = conversation.begin_answer("model", now=now)
    answer.add(text)
    answer.finish(END)
    return conversation


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "conversations")


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_what_is_saved_is_loaded(conversation: Conversation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ConversationStore(Path(folder)).save_now(conversation)
        if not conversation.is_empty:
            assert ConversationStore(Path(folder)).load(conversation.id) == conversation


async def test_the_list_has_the_last_used_first(store: ConversationStore) -> None:
    assert store.entries() == []
    for number, question in enumerate(["old", "new", "middle"]):
        await store.save(held(question, now={"old": 1.0, "new": 9.0, "middle": 5.0}[question] + number / 10))
    assert [entry.title for entry in store.entries()] == ["new", "middle", "old"]


async def test_only_changed_files_are_read_again_for_the_list(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [held(f"question {number}", now=float(number)) for number in range(5)]
    for conversation in kept:
        await store.save(conversation)
    store.entries()
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.stem), read_bytes(path))[1])
    assert len(store.entries()) == 5 and read == []
    kept[2].title = "other"
    store.save_now(kept[2])
    read.clear()
    assert [entry.title for entry in store.entries() if entry.id == kept[2].id] == ["other"]
    assert read == [kept[2].id]


async def test_an_empty_conversation_has_no_file(store: ConversationStore) -> None:
    conversation = Conversation()
    await store.save(conversation)
    assert store.entries() == []
    conversation.draft = "typed"
    await store.save(conversation)
    assert store.load(conversation.id).draft == "typed"
    conversation.draft = ""
    await store.save(conversation)
    assert store.entries() == []


def test_only_the_owner_can_read_them(store: ConversationStore) -> None:
    others = 0o077 if os.name == "posix" else 0  # on Windows the rights of the profile's folder hold
    conversation = held("secret")
    store.save_now(conversation)
    trashed = store.delete(conversation.id).trashed
    assert store.folder.stat().st_mode & others == 0
    assert trashed.stat().st_mode & others == 0


def test_the_work_of_another_program_is_not_written_over(store: ConversationStore) -> None:
    mine = held("question")
    store.save_now(mine)
    other_store = ConversationStore(store.folder)
    theirs = other_store.load(mine.id)
    theirs.ask("theirs", now=2.0)
    assert other_store.save_now(theirs) == "saved"
    first_id = mine.id
    mine.ask("mine", now=3.0)
    assert store.save_now(mine) == "copied"
    assert mine.id != first_id and mine.title == "question (copy)"
    assert [turn.question for turn in store.load(first_id).turns] == ["question", "theirs"]
    assert [turn.question for turn in store.load(mine.id).turns] == ["question", "mine"]
    assert store.load(mine.id).title == "question (copy)"
    mine.ask("more", now=4.0)
    assert store.save_now(mine) == "saved"


def test_a_file_that_was_damaged_meanwhile_stays_beside_the_copy(store: ConversationStore) -> None:
    mine = held("question")
    store.save_now(mine)
    path = store.folder / f"{mine.id}.json"
    path.write_bytes(b"{ damaged")
    mine.ask("more", now=2.0)
    assert store.save_now(mine) == "copied"
    assert path.read_bytes() == b"{ damaged"


def test_what_was_deleted_elsewhere_is_written_again_when_its_user_goes_on(store: ConversationStore) -> None:
    mine = held("question")
    store.save_now(mine)
    ConversationStore(store.folder).delete(mine.id)
    mine.ask("more", now=2.0)
    assert store.save_now(mine) == "saved"
    assert len(store.load(mine.id).turns) == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a conversation"),
        (b"\xff\xfe\x00", "not a conversation"),
        (b'{"format": 1, "turns": [', "not a conversation"),
        (b"[]", "not a conversation"),
        (b'{"format": 99, "title": "later"}', "format 99; this one reads up to 1"),
    ],
)
def test_what_cannot_be_read_is_shown_with_the_reason_and_stays(
    store: ConversationStore, data: bytes, reason: str
) -> None:
    store.save_now(held("fine"))
    path = store.folder / "foreign.json"
    path.write_bytes(data)
    (entry,) = [entry for entry in store.entries() if entry.problem]
    assert reason in entry.problem and entry.title == "foreign.json"
    with pytest.raises(ConversationFileError, match=reason):
        store.load("foreign")
    with pytest.raises(ConversationFileError, match=reason):
        store.rename("foreign", "x")
    assert store.search("fine") and path.read_bytes() == data


def test_fields_of_another_version_are_refused_not_lost(store: ConversationStore) -> None:
    conversation = held("question")
    store.save_now(conversation)
    path = store.folder / f"{conversation.id}.json"
    document = json.loads(path.read_bytes())
    document["turns"][0]["mood"] = "good"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConversationFileError, match=r"turns\.0\.mood"):
        store.load(conversation.id)


def test_a_running_answer_of_a_program_that_ended_is_broken(store: ConversationStore) -> None:
    conversation = Conversation()
    conversation.ask("one", now=1.0)
    conversation.begin_answer(now=1.0).add("half")
    store.save_now(conversation)
    answer = ConversationStore(store.folder).load(conversation.id).turns[0].answer
    assert answer is not None
    assert (answer.text, answer.state, answer.error) == (
        "half",
        "broken",
        "the conversation was left before the answer ended",
    )


def test_rename_changes_the_file_and_the_open_one_can_go_on(store: ConversationStore) -> None:
    conversation = held("question")
    store.save_now(conversation)
    store.rename(conversation.id, "title \ud800")
    assert store.entries()[0].title == "title \ufffd"
    conversation.title = "title \ud800"
    conversation.ask("more", now=2.0)
    assert store.save_now(conversation) == "saved"


def test_rename_does_not_hide_the_work_of_another_program(store: ConversationStore) -> None:
    mine = held("question")
    store.save_now(mine)
    other_store = ConversationStore(store.folder)
    theirs = other_store.load(mine.id)
    theirs.ask("theirs", now=2.0)
    other_store.save_now(theirs)
    store.rename(mine.id, "title")
    mine.title = "title"
    assert store.save_now(mine) == "copied"
    assert len(store.load(theirs.id).turns) == 2


async def test_delete_moves_to_the_trash_and_can_be_undone(store: ConversationStore) -> None:
    conversation = held("question")
    await store.save(conversation)
    deleted = store.delete(conversation.id)
    assert store.entries() == [] and deleted.trashed.is_file()
    conversation.ask("late", now=2.0)
    await store.save(conversation)  # a save that was under way must not bring it back
    assert store.entries() == []
    assert store.restore(deleted) == conversation.id
    assert len(store.load(conversation.id).turns) == 1
    with pytest.raises(ConversationFileError, match="not there any more"):
        store.restore(deleted)
    with pytest.raises(ConversationFileError, match="not there any more"):
        store.delete("unknown")


def test_undoing_a_deletion_does_not_write_over_what_came_meanwhile(store: ConversationStore) -> None:
    conversation = held("question")
    store.save_now(conversation)
    other_store = ConversationStore(store.folder)
    theirs = other_store.load(conversation.id)
    deleted = store.delete(conversation.id)
    theirs.ask("theirs", now=2.0)
    other_store.save_now(theirs)
    assert store.restore(deleted) != conversation.id
    assert sorted(len(store.load(entry.id).turns) for entry in store.entries()) == [1, 2]


def test_the_trash_is_emptied_in_time(store: ConversationStore) -> None:
    first, second = held("first"), held("second")
    store.save_now(first)
    store.save_now(second)
    old = store.delete(first.id).trashed
    then = time.time() - (TRASH_DAYS + 1) * 86_400
    os.utime(old, (then, then))
    recent = store.delete(second.id).trashed
    assert not old.exists() and recent.exists()


def test_a_full_disk_leaves_the_old_file_and_says_so(store: ConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = held("question")
    store.save_now(conversation)
    before = (store.folder / f"{conversation.id}.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    conversation.ask("more", now=2.0)
    with pytest.raises(ConversationFileError, match=os.strerror(errno.ENOSPC)):
        store.save_now(conversation)
    monkeypatch.undo()
    assert (store.folder / f"{conversation.id}.json").read_bytes() == before
    assert {path.name for path in store.folder.iterdir()} == {f"{conversation.id}.json", ".lock"}
    assert store.save_now(conversation) == "saved"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    store = ConversationStore(tmp_path / "file" / "conversations")
    with pytest.raises(ConversationFileError, match="conversations cannot be written"):
        store.save_now(held("question"))


def test_what_a_crash_left_is_removed_after_a_day_and_not_before(store: ConversationStore) -> None:
    store.save_now(held("question"))
    old, recent = store.folder / ".a.json.1.part", store.folder / ".b.json.2.part"
    for path in (old, recent):
        path.write_bytes(b"{")
    then = time.time() - 2 * 86_400
    os.utime(old, (then, then))
    assert len(store.entries()) == 1
    assert not old.exists() and recent.exists()


async def test_saves_of_one_conversation_keep_their_order_and_go_on_when_cancelled(store: ConversationStore) -> None:
    conversation = held("question")
    tasks = []
    for number in range(8):
        conversation.draft = f"draft {number}"
        tasks.append(asyncio.create_task(store.save(conversation)))
        await asyncio.sleep(0)
    tasks[-1].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[:-1] == ["saved"] * 7 and isinstance(outcomes[-1], asyncio.CancelledError)
    await asyncio.gather(*store._saves)
    assert store.load(conversation.id).draft == "draft 7"
    assert store.save_now(conversation) == "saved"


def test_a_late_thread_does_not_undo_what_was_saved_after_its_snapshot(store: ConversationStore) -> None:
    conversation = held("question")
    late = store._snapshot(conversation)
    conversation.draft = "typed"
    store.save_now(conversation)
    assert store._save(conversation, late) == "saved"
    assert store.load(conversation.id).draft == "typed"


def test_programs_that_write_at_once_lose_nothing(store: ConversationStore) -> None:
    seed = held("question")
    store.save_now(seed)
    marks = [f"mark {number}" for number in range(6)]
    stores = [ConversationStore(store.folder) for _ in marks]
    opened = [other.load(seed.id) for other in stores]
    outcomes: list[str] = []

    def write(other: ConversationStore, conversation: Conversation, mark: str) -> None:
        conversation.ask(mark, now=2.0)
        outcomes.append(other.save_now(conversation))

    threads = [threading.Thread(target=write, args=each) for each in zip(stores, opened, marks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["copied"] * 5 + ["saved"]
    assert sorted(store.load(entry.id).turns[-1].question for entry in store.entries()) == marks


_WRITER = """
import sys
from pathlib import Path
from tui.chat.store import ConversationStore
store = ConversationStore(Path(sys.argv[1]))
conversation = store.load(sys.argv[2])
while True:
    conversation.ask("x" * 20000, now=1.0)
    store.save_now(conversation)
    print(len(conversation.turns), flush=True)
"""


def test_a_program_that_is_killed_while_it_writes_leaves_a_whole_file(store: ConversationStore) -> None:
    conversation = held("question")
    store.save_now(conversation)
    for _ in range(3):
        command = [sys.executable, "-c", _WRITER, str(store.folder), conversation.id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(3)]
            writer.kill()
            said += writer.stdout.readlines()
        reached = int(said[-1])
        assert len(store.load(conversation.id).turns) in (reached, reached + 1)
    assert [entry.problem for entry in store.entries()] == [""]
