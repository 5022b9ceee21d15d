"""The chat pane against a scripted head."""

import asyncio
from pathlib import Path

from scripted_chat import GONE, UP, ChatApp, Scripted, ask, end, fleet, until
from textual.events import Paste

from tui.chat.conversation import Conversation
from tui.chat.settings import BEGINNING
from tui.chat.store import ConversationStore
from tui.client.errors import HeadError, HeadGoneError, RefusedError
from tui.client.head_client import Message


def saved(folder: Path) -> Conversation:
    store = ConversationStore(folder)
    return store.load(store.entries()[0].id)


async def test_a_question_is_answered_and_kept(tmp_path: Path) -> None:
    head = Scripted(["Hel", "**lo**", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test(size=(100, 40)) as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "24.1 tok/s" in app.said)
        assert "Hello" in app.said
        assert "▌You" in app.said
        assert app.typed == ""
        assert head.asked == [([Message("user", "hi")], BEGINNING.as_request())]
        await until(pilot, lambda: "42 of 4,096 tokens" in app.state_line)
        assert head.counted[-1] == [Message("user", "hi"), Message("assistant", "Hel**lo**")]
    conversation = saved(tmp_path)
    assert conversation.turns[0].answer.text == "Hel**lo**"
    assert conversation.turns[0].answer.state == "whole"


async def test_escape_stops_and_keeps_the_half_answer(tmp_path: Path) -> None:
    head = Scripted(["Half an ", "answer", asyncio.Event()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "Half an answer" in app.said)
        await pilot.press("escape")
        await until(pilot, lambda: head.closed == 1)
        assert "Half an answer" in app.said
        assert "stopped by you" in app.said
    assert saved(tmp_path).turns[0].answer.state == "stopped"


async def test_answering_again_keeps_the_first_answer(tmp_path: Path) -> None:
    head = Scripted(["one", end()], ["two", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "two" in app.said and "tok/s ·" in app.said)
        assert "2 of 2" in app.said
        assert "\none" not in app.said
        assert head.asked[1][0] == [Message("user", "hi")]
        await pilot.press("f9")
        assert "1 of 2" in app.said
        assert "one" in app.said


async def test_the_last_message_is_edited_and_sent_again(tmp_path: Path) -> None:
    head = Scripted(["one", end()], ["two", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press(*"draft", "ctrl+e")
        assert app.typed == "hi"
        await ask(pilot, "!")
        await until(pilot, lambda: "two" in app.said)
        assert head.asked[1][0] == [Message("user", "hi!")]
        assert "one" not in app.said
        assert app.typed == "draft"
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press("alt+e")
        await until(pilot, lambda: "one" in app.said)
        assert "two" not in app.said


async def test_editing_is_given_up_with_escape(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["one", end()]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press(*"draft", "ctrl+e", "x", "escape")
        assert app.typed == "draft"
        assert len(app.transcript.views) == 2


async def test_a_broken_answer_keeps_its_text(tmp_path: Path) -> None:
    head = Scripted(["Half", HeadError("stage 2 [b]died[/b]", hint="Try again.")], ["Whole", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "broke off: stage 2 [b]died[/b]. Try again." in " ".join(app.said.split()))
        assert "Half" in app.said
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Whole" in app.said and "tok/s ·" in app.said)
    assert [answer.state for answer in saved(tmp_path).turns[0].answers] == ["broken", "whole"]


async def test_an_end_without_a_word_is_an_error(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Half"]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "broke off: the head ended it" in app.said)


async def test_an_unforeseen_error_is_said_and_loses_nothing(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Half", ZeroDivisionError("x")]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "ZeroDivisionError" in app.said)
        assert "Half" in app.said


async def test_events_stand_under_the_answer(tmp_path: Path) -> None:
    go = asyncio.Event()
    app = ChatApp(tmp_path, Scripted(["Hel", go, "lo", end()]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "Hel" in app.said)
        app.pane.show_fleet(fleet("pc-2 has left [b]\x1b[2J"))
        assert "pc-2 has left [b]\ufffd[2J" in app.said
        go.set()
        await until(pilot, lambda: "tok/s ·" in app.said)
        assert "Hello" in app.said
        assert "pc-2 has left" in app.said
        app.pane.show_fleet(fleet("later"))
        assert "later" not in app.said


async def test_without_a_head_the_text_stays(tmp_path: Path) -> None:
    head = Scripted(["Hello", end()])
    app = ChatApp(tmp_path, head, GONE)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        assert app.typed == "hi"
        assert "does not answer (connection refused)" in app.notice
        assert "✖ the head does not answer" in app.state_line
        assert not head.asked
        app.pane.show_connection(UP)
        await pilot.press("enter")
        await until(pilot, lambda: "tok/s" in app.said)
        assert app.notice == ""
        assert app.typed == ""


async def test_with_no_head_chosen_the_text_stays(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, None)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        assert app.typed == "hi"
        assert "there is no head yet" in app.notice


async def test_a_head_that_goes_in_mid_answer(tmp_path: Path) -> None:
    head = Scripted(["Half", HeadGoneError("the answer broke off")], ["Whole", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "broke off" in app.said)
        app.pane.show_connection(GONE)
        await ask(pilot, "more")
        assert app.typed == "more"
        app.pane.show_connection(UP)
        await pilot.press("enter")
        await until(pilot, lambda: "Whole" in app.said)
        assert head.asked[1][0] == [Message("user", "hi"), Message("assistant", "Half"), Message("user", "more")]


async def test_while_an_answer_comes_enter_keeps_the_text(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Hel", asyncio.Event()]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await ask(pilot, "more")
        assert app.typed == "more"
        assert "An answer is on its way" in app.notice


async def test_an_answer_goes_on_behind_another_conversation(tmp_path: Path) -> None:
    go = asyncio.Event()
    app = ChatApp(tmp_path, Scripted(["first ", go, "answer", end()]))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "first" in app.said)
        await pilot.press("ctrl+n")
        assert app.said == ""
        await until(pilot, lambda: len(ConversationStore(tmp_path).entries()) == 1)  # a thread saves it
        go.set()
        await until(pilot, lambda: saved(tmp_path).turns[0].answer.state == "whole")
        assert app.said == ""
    assert saved(tmp_path).turns[0].answer.text == "first answer"


async def test_leaving_in_mid_answer_keeps_what_came(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Half", asyncio.Event()]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "Half" in app.said)
        await pilot.press(*"draft")
    conversation = saved(tmp_path)
    assert conversation.turns[0].answer.text == "Half"
    assert conversation.turns[0].answer.state == "stopped"
    assert conversation.draft == "draft"
    again = ChatApp(tmp_path, Scripted(["x"]))
    async with again.run_test() as pilot:
        await until(pilot, lambda: again.typed == "draft")
        await until(pilot, lambda: "Half" in again.said)  # it is laid out a slice at a time


async def test_the_answer_and_its_code_blocks_are_copied_in_turn(tmp_path: Path) -> None:
    text = "Do:\n```python\nx = 1\n```\nor\n```\ny\x1b[2J\n```\n"
    app = ChatApp(tmp_path, Scripted([text, end()]))
    async with app.run_test(size=(100, 40)) as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press("ctrl+y", "ctrl+y", "ctrl+y", "ctrl+y")
        clean = text.replace("\x1b", "\ufffd")
        assert app.clipboard_texts == [clean, "x = 1", "y\ufffd[2J", clean]
        row = app.said.split("\n").index("python copy")
        await pilot.click(app.transcript, offset=(9, row - app.transcript.scroll_offset.y))
        assert app.clipboard_texts[-1] == "x = 1"
        await pilot.click(app.transcript, offset=(8, 1))
        assert app.clipboard_texts[-1] == "hi"


async def test_the_count_is_an_estimate_until_the_head_has_counted(tmp_path: Path) -> None:
    head = Scripted(["x"])
    app = ChatApp(tmp_path, head)
    head.may_count.clear()
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"12345678")
        assert "~2 of 4,096 tokens" in app.state_line
        head.may_count.set()
        await until(pilot, lambda: "42 of 4,096" in app.state_line)
        assert head.counted == [[Message("user", "12345678")]]
        head.tokens = 5000
        await pilot.press("9")
        await until(pilot, lambda: "too long: 5,000 of 4,096" in app.state_line)
        head.tokens = RefusedError("prompt [b]too long[/b]")
        await pilot.press("0")
        await until(pilot, lambda: "[b]too long[/b]" in app.state_line)
        head.tokens, asked = HeadGoneError("nobody"), len(head.counted)
        await pilot.press("1")
        await until(pilot, lambda: len(head.counted) > asked)
        await pilot.pause()
        assert "~3 of 4,096" in app.state_line


async def test_a_large_paste_goes_beside_the_text_and_is_sent_whole(tmp_path: Path) -> None:
    head = Scripted(["ok", end()])
    app = ChatApp(tmp_path, head)
    text = "".join(f"line {number}\n" for number in range(80_000))
    async with app.run_test(size=(100, 30)) as pilot:
        app.post_message(Paste(text))
        await until(pilot, lambda: "pasted text 1" in str(app.query_one("#files").visual))
        await pilot.press("backspace", "ctrl+z")
        assert app.typed == ""
        await ask(pilot, "what")
        await until(pilot, lambda: "tok/s" in app.said)
        (message,) = head.asked[0][0]
        assert text in message.content
        assert message.content.startswith("what")
        assert "▤ pasted text 1" in app.said


async def test_a_small_paste_is_typed_and_harmless(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["ok"]))
    async with app.run_test() as pilot:
        app.post_message(Paste("a\x1b[2J\nb"))
        await until(pilot, lambda: app.typed == "a\ufffd[2J\nb")


async def test_new_lines(tmp_path: Path) -> None:
    head = Scripted(["ok", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test() as pilot:
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "enter")
        await until(pilot, lambda: bool(head.asked))
        assert head.asked[0][0] == [Message("user", "a\nb\nc")]


async def test_attaching_settings_renaming_exporting(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes", encoding="utf-8")
    head = Scripted(["ok", end()])
    app = ChatApp(tmp_path / "conversations", head)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.screen.is_modal)
        await pilot.press(*str(notes), "enter")
        await until(pilot, lambda: "notes.txt" in str(app.screen_stack[0].query_one("#files").visual))
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        assert "my notes" in head.asked[0][0][0].content
        await pilot.press("ctrl+t")
        await until(pilot, lambda: app.screen.is_modal)
        await pilot.press("end", *" [b]x", "enter")
        await until(pilot, lambda: not app.screen.is_modal)
        assert str(app.query_one("#label").visual) == "hi [b]x"
        await pilot.press("ctrl+g")
        await until(pilot, lambda: app.screen.is_modal)
        app.screen.query_one("Input").value = str(tmp_path / "out.md")
        await pilot.press("enter")
        await until(pilot, lambda: (tmp_path / "out.md").exists())
        await pilot.press("ctrl+s")
        await until(pilot, lambda: app.screen.is_modal)
        await pilot.press("escape")
    assert saved(tmp_path / "conversations").title == "hi [b]x"


async def test_a_draft_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["x"]))
    async with app.run_test() as pilot:
        await pilot.press("a")
        await until(pilot, lambda: len(ConversationStore(tmp_path).entries()) == 1)
        await pilot.press("backspace")
    assert ConversationStore(tmp_path).entries() == []


async def test_a_folder_that_cannot_be_written_is_said_and_nothing_stops(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    app = ChatApp(blocked / "conversations", Scripted(["Hello", end()]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        assert "Hello" in app.said


async def test_a_cut_answer_says_so(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Hello", end("length", tokens=16)]))
    async with app.run_test() as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "cut at the limit of 16 tokens" in app.said)


async def test_typing_while_reading_goes_into_the_question(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Hello", end()]))
    async with app.run_test() as pilot:
        await pilot.press("f6")
        assert app.transcript.has_focus
        await pilot.press("h", "i")
        assert app.typed == "hi"
