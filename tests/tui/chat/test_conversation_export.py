from __future__ import annotations

from pathlib import Path, PureWindowsPath

import pytest
from chat_texts import ANY_TEXT, END, conversations
from hypothesis import given

from tui.chat.attachment import Attachment
from tui.chat.conversation import Conversation
from tui.chat.errors import ConversationFileError
from tui.chat.export import as_markdown, export, file_name


def talk() -> Conversation:
    conversation = Conversation(system_prompt="Be short.")
    conversation.ask("Why is the sky blue?", [Attachment(name="sky.md", text="```py\nx\n```")], now=1.0)
    answer = conversation.begin_answer("SmolLM2", now=1.0)
    answer.add("Rayleigh.")
    answer.finish(END)
    conversation.ask("And the sea?", now=2.0)
    broken = conversation.begin_answer("SmolLM2", now=2.0)
    broken.add("It mir")
    broken.break_off("pc-2 left")
    return conversation


def test_a_conversation_as_markdown() -> None:
    assert as_markdown(talk()) == (
        "# Why is the sky blue?\n\n## System prompt\n\nBe short.\n\n"
        "## Question\n\nWhy is the sky blue?\n\nFile: sky.md\n````md\n```py\nx\n```\n````\n\n"
        "## Answer (SmolLM2)\n\nRayleigh.\n\n"
        "## Question\n\nAnd the sea?\n\n## Answer (SmolLM2)\n\nIt mir\n\n*(broke off: pc-2 left)*\n"
    )


@given(conversations())
def test_every_shown_text_is_in_the_export(conversation: Conversation) -> None:
    text = as_markdown(conversation)
    assert text.encode()
    for turn in conversation.turns:
        assert turn.question.strip("\n") in text
        assert turn.answer is None or turn.answer.text.strip("\n") in text


@given(ANY_TEXT)
def test_a_file_name_is_one_for_windows_too(title: str) -> None:
    name = file_name(title)
    assert 0 < len(name.encode()) <= 81
    assert not set(name) & set('<>:"/\\|?*') and all(ord(character) >= 32 for character in name)
    assert not name.endswith((".", " ")) and not name.startswith(".")
    assert PureWindowsPath(name).name == name


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("con", "_con"),
        ("NUL.txt", "_NUL.txt"),
        ("com1", "_com1"),
        ("../../etc/passwd", "etc passwd"),
        ("...", "conversation"),
        ("a: b?", "a b"),
        ("ends. ", "ends"),
    ],
)
def test_names_that_a_system_would_not_take(title: str, name: str) -> None:
    assert file_name(title) == name


def test_an_export_into_a_folder_finds_a_free_name(tmp_path: Path) -> None:
    conversation = talk()
    first, second = export(conversation, tmp_path), export(conversation, tmp_path)
    assert (first.name, second.name) == ("Why is the sky blue.md", "Why is the sky blue (2).md")
    assert first.read_bytes().decode() == as_markdown(conversation)


def test_a_file_is_written_over_only_when_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ConversationFileError, match="there is a file of this name"):
        export(talk(), path)
    assert path.read_text(encoding="utf-8") == "mine"
    assert export(talk(), path, overwrite=True) == path
    assert path.read_text(encoding="utf-8").startswith("# Why")


@pytest.mark.parametrize("name", ["none/there.md", "a\0b.md"])
def test_where_nothing_can_be_written_the_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConversationFileError, match="cannot be written"):
        export(talk(), tmp_path / name)
