"""The transcript: long conversations, scrolling, drawing."""

from pathlib import Path

from scripted_chat import ChatApp, Scripted, end, until
from textual.app import App, ComposeResult

from tui.chat.conversation import Conversation
from tui.chat.conversation_view import ConversationView
from tui.chat.message_view import AnswerView, QuestionView, title
from tui.chat.transcript import Transcript


class TranscriptApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.view = ConversationView()

    def compose(self) -> ComposeResult:
        yield self.view

    @property
    def transcript(self) -> Transcript:
        return self.view.transcript

    def line(self, y: int) -> str:
        return self.transcript.render_line(y).text.rstrip()


def conversation(turns: int) -> Conversation:
    made = Conversation()
    for number in range(turns):
        made.ask(f"question {number}", now=1.0)
        answer = made.begin_answer("m", now=1.0)
        answer.add(f"Answer {number} has *some* text.\n\n```python\nx = {number}\n```\n\n" + "And more words. " * 20)
        answer.finish(end())
    return made


async def test_it_begins_at_the_end_and_lays_out_the_rest_later() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(conversation(150), None)
        await until(pilot, lambda: any("And more words" in app.line(y) for y in range(24)))
        assert app.transcript.is_vertical_scroll_end
        await until(pilot, lambda: app.transcript.is_laid_out)
        assert app.transcript.is_vertical_scroll_end
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        assert app.line(1).startswith(" ▌You")
        assert app.line(2) == " question 0"
        app.view.scroll_to_turn(100)
        await pilot.pause()
        assert app.line(2) == " question 100"


async def test_what_is_in_view_stays_while_more_is_laid_out_above() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(conversation(150), None)
        app.transcript.scroll_relative(y=-5, animate=False)
        await pilot.pause()
        before = [app.line(y) for y in range(20)]
        await until(pilot, lambda: app.transcript.is_laid_out)
        await pilot.pause()
        assert [app.line(y) for y in range(20)] == before


async def test_another_width_keeps_the_place() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(conversation(50), None)
        await until(pilot, lambda: app.transcript.is_laid_out)
        app.view.scroll_to_turn(20)
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: app.transcript.is_laid_out)
        await pilot.pause()
        assert app.line(2) == " question 20"


async def test_it_follows_only_from_its_end(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["line\n\n" * 40, end()], ["line\n\n" * 40, end()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.pause()
        assert app.transcript.is_vertical_scroll_end
        app.transcript.scroll_to(y=3, animate=False)
        view = app.transcript.views[-1]
        assert isinstance(view, AnswerView)
        view.follow(view.copy_text() + "more\n\n" * 10)
        app.transcript.update_view(view)
        await pilot.pause()
        assert app.transcript.scroll_offset.y == 3


async def test_a_long_question_is_folded() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        text = "\n".join(f"line {number}" for number in range(100))
        view = QuestionView(lambda: title("You"), text)
        app.transcript.show([view])
        rows = [row.content.plain for row in view.rows]
        assert "line 15" in rows
        assert "line 16" not in rows
        assert rows[-1] == f"▸ {len(text):,} characters in all; show"
        await pilot.click(app.transcript, offset=(20, len(rows) - 1))
        assert "line 99" in [row.content.plain for row in view.rows]
        assert view.copy_text() == text


async def test_marked_text_can_be_copied() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.transcript.show([AnswerView(lambda: title("Answer"), "Some words here")])
        await pilot.pause()
        await pilot.mouse_down(app.transcript, offset=(1, 2))
        await pilot.hover(app.transcript, offset=(10, 2))
        await pilot.mouse_up(app.transcript, offset=(10, 2))
        assert app.screen.get_selected_text() == "Some words"


async def test_both_themes_draw() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(conversation(2), None)
        await pilot.pause()
        dark = [segment.style for segment in app.transcript.render_line(10)]
        app.theme = "textual-light"
        await pilot.pause()
        assert [segment.style for segment in app.transcript.render_line(10)] != dark


async def test_the_end_stays_in_view_when_the_question_grows(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["line\n\n" * 40, end()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "tok/s" in app.said)
        width, height = app.transcript.size
        await pilot.press("a", "ctrl+j", "b", "ctrl+j", "c", "ctrl+j", "d")
        await until(pilot, lambda: app.transcript.size.height < height and app.transcript.is_vertical_scroll_end)
        await pilot.resize_terminal(70, 20)
        await until(pilot, lambda: app.transcript.size.width < width and app.transcript.is_vertical_scroll_end)
