from __future__ import annotations

import json

import pytest
from chat_texts import ANY_TEXT, END, conversations
from hypothesis import given

from tui.chat.attachment import Attachment
from tui.chat.conversation import Answer, Conversation
from tui.chat.text import mend
from tui.client.head_client import Message


def answered(*pairs: tuple[str, str]) -> Conversation:
    conversation = Conversation()
    for question, text in pairs:
        conversation.ask(question, now=1.0)
        answer = conversation.begin_answer("model", now=2.0)
        answer.add(text)
        answer.finish(END)
    return conversation


@given(ANY_TEXT)
def test_mended_text_can_be_encoded_and_the_rest_stays(text: str) -> None:
    mended = mend(text)
    assert mended.encode().decode() == mended
    assert [c for c in mended if c < "\ud800"] == [c for c in text if c < "\ud800"]
    assert mend(mended) == mended


def test_surrogates_that_belong_together_become_their_character() -> None:
    assert mend("a\ud83d\ude00b") == "a\U0001f600b"
    assert mend("\ud83dx") == "\ufffdx"


@given(conversations())
def test_a_conversation_survives_its_file(conversation: Conversation) -> None:
    data = conversation.model_dump_json().encode()
    again = Conversation.model_validate_json(data)
    again.id = conversation.id
    assert again == conversation
    assert "id" not in json.loads(data)


@given(conversations())
def test_questions_and_answers_take_turns_and_end_with_a_question(conversation: Conversation) -> None:
    roles = [message.role for message in conversation.messages() if message.role != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    assert bool(conversation.turns) == (roles[-1:] == ["user"])


def test_messages_hold_system_prompt_turns_and_attachments() -> None:
    conversation = answered(("one", "first"))
    conversation.system_prompt = "be short"
    conversation.ask("two", [Attachment(name="a.py", text="x = 1")], now=3.0)
    assert conversation.messages() == [
        Message("system", "be short"),
        Message("user", "one"),
        Message("assistant", "first"),
        Message("user", "two\n\nFile: a.py\n```py\nx = 1\n```"),
    ]


def test_a_half_answer_is_kept_with_how_it_ended_and_is_part_of_the_context() -> None:
    conversation = Conversation()
    conversation.ask("one", now=1.0)
    stopped = conversation.begin_answer(now=1.0)
    stopped.add("half")
    stopped.stop()
    conversation.ask("two", now=2.0)
    broken = conversation.begin_answer(now=2.0)
    broken.add("a qua")
    broken.break_off("pc-2 left")
    conversation.ask("three", now=3.0)
    assert [message.content for message in conversation.messages()] == ["one", "half", "two", "a qua", "three"]
    assert (stopped.state, broken.state, broken.error) == ("stopped", "broken", "pc-2 left")


def test_a_question_without_any_answer_goes_with_the_next() -> None:
    conversation = Conversation()
    conversation.ask("one", now=1.0)
    conversation.begin_answer(now=1.0).break_off("nobody there")
    conversation.ask("two", now=2.0)
    assert conversation.messages() == [Message("user", "one\n\ntwo")]


def test_regenerating_keeps_the_earlier_answer_and_leaves_it_out_of_the_context() -> None:
    conversation = answered(("one", "first"))
    again = conversation.begin_answer("model", now=5.0)
    turn = conversation.turns[0]
    assert turn.answer is again
    assert [answer.text for answer in turn.answers] == ["first", ""]
    assert conversation.messages() == [Message("user", "one")]
    again.add("second")
    again.finish(END)
    conversation.show_answer(0)
    assert turn.answer is not None and turn.answer.text == "first"
    conversation.ask("two", now=6.0)
    assert [message.content for message in conversation.messages()] == ["one", "first", "two"]


def test_an_answer_without_a_word_makes_room_for_the_next() -> None:
    conversation = Conversation()
    conversation.ask("one", now=1.0)
    conversation.begin_answer(now=1.0).break_off("nobody there")
    second = conversation.begin_answer(now=2.0)
    assert conversation.turns[0].answers == [second]
    assert conversation.turns[0].answer is second


def test_only_one_answer_runs_and_only_to_a_question() -> None:
    conversation = Conversation()
    with pytest.raises(ValueError, match="nothing was asked"):
        conversation.begin_answer(now=1.0)
    conversation.ask("one", now=1.0)
    conversation.begin_answer(now=1.0)
    with pytest.raises(ValueError, match="is running"):
        conversation.begin_answer(now=2.0)


def test_an_edit_answers_anew_from_there_and_can_be_undone() -> None:
    conversation = answered(("one", "1"), ("two", "2"), ("three", "3"))
    old = list(conversation.turns)
    conversation.edit(1, "zwei", now=9.0)
    assert [turn.question for turn in conversation.turns] == ["one", "zwei"]
    assert [message.content for message in conversation.messages()] == ["one", "1", "zwei"]
    assert conversation.can_bring_back
    conversation.bring_back()
    assert conversation.turns == old
    conversation.bring_back()
    assert [turn.question for turn in conversation.turns] == ["one", "zwei"]


def test_what_an_edit_set_aside_waits_until_what_it_built_on_is_there() -> None:
    conversation = answered(("one", "1"), ("two", "2"))
    conversation.edit(1, "zwei", now=9.0)
    conversation.edit(0, "eins", now=9.0)
    conversation.bring_back()
    assert [turn.question for turn in conversation.turns] == ["one", "zwei"]
    with pytest.raises(IndexError):
        conversation.edit(7, "x", now=9.0)


def test_the_first_question_names_it_and_the_user_can() -> None:
    conversation = Conversation()
    assert conversation.label == "New conversation"
    conversation.ask("\n\n  Why is the sky blue?\nAnd the sea?", now=1.0)
    assert conversation.label == "Why is the sky blue?"
    conversation.title = "Sky\x1b[31m"
    conversation.ask("next", now=2.0)
    assert "\x1b" not in conversation.label and conversation.label.startswith("Sky")
    only_a_file = Conversation()
    only_a_file.ask("", [Attachment(name="notes.txt", text="x")], now=1.0)
    assert only_a_file.label == "notes.txt"


def test_a_long_first_line_is_shortened_for_the_title() -> None:
    conversation = Conversation()
    conversation.ask("word " * 100, now=1.0)
    assert len(conversation.title) == 60 and conversation.title.endswith("…")


def test_empty_is_what_holds_nothing_of_the_user() -> None:
    conversation = Conversation()
    assert conversation.is_empty
    conversation.draft = "x"
    assert not conversation.is_empty


def test_answers_nobody_writes_any_more_are_broken() -> None:
    conversation = Conversation()
    conversation.ask("one", now=1.0)
    answer = conversation.begin_answer(now=1.0)
    answer.add("half")
    conversation.end_running("the program ended")
    assert (answer.text, answer.state, answer.error) == ("half", "broken", "the program ended")


def test_statistics_that_cannot_be_read_are_no_reason_to_refuse_an_answer() -> None:
    answer = Answer.model_validate_json('{"text": "x", "state": "whole", "end": {"of": "another version"}}')
    assert answer.text == "x" and answer.end is None
    kept = Answer(text="x", state="whole", end=END)
    assert Answer.model_validate_json(kept.model_dump_json()).end == END
