from __future__ import annotations

from pathlib import Path

from chat_texts import ANY_TEXT, conversations
from hypothesis import given

from tui.chat.conversation import Conversation
from tui.chat.search import find, ranked, words_of
from tui.chat.store import ConversationStore


def about(title: str, *texts: str, used: float = 1.0) -> Conversation:
    conversation = Conversation(title=title)
    for text in texts:
        conversation.ask("?", now=used)
        conversation.begin_answer(now=used).add(text)
        conversation.turns[-1].answers[-1].stop()
    conversation.used = used
    return conversation


def titles(conversations: list[Conversation], query: str) -> list[str]:
    hits = (find(conversation, words_of(query)) for conversation in conversations)
    return [hit.title for hit in ranked(hit for hit in hits if hit)]


def test_case_and_composition_make_no_difference() -> None:
    conversations = [about("Straße"), about("CAFE\u0301"), about("other")]
    assert titles(conversations, "STRASSE") == ["Straße"]
    assert titles(conversations, "caf\xe9") == ["CAFE\u0301"]


def test_all_words_must_be_there_anywhere() -> None:
    conversations = [about("Sky", "blue light"), about("Sky", "red"), about("Sea", "blue")]
    hits = [find(conversation, words_of("sky  BLUE")) for conversation in conversations]
    assert [hit is not None for hit in hits] == [True, False, False]
    assert find(conversations[0], words_of("  ")) is None


def test_titles_come_first_then_many_finds_then_the_last_used() -> None:
    conversations = [
        about("a", "fish", used=1.0),
        about("b", "fish fish", used=1.0),
        about("fish", "x", used=0.0),
        about("c", "fish", used=2.0),
    ]
    assert titles(conversations, "fish") == ["fish", "b", "c", "a"]


def test_a_hit_says_where_with_the_line_around_it() -> None:
    conversation = about("t", "nothing", "first line\n" + "ẞ" * 40 + " needle in a line\x1b[31m\nlast")
    hit = find(conversation, words_of("NEEDLE"))
    assert hit is not None and hit.turn == 1
    assert "needle in a line" in hit.excerpt and hit.excerpt.startswith("…") and "\x1b" not in hit.excerpt


def test_answers_not_shown_and_turns_set_aside_are_found() -> None:
    conversation = about("t", "the first answer")
    conversation.begin_answer(now=2.0).add("the second")
    conversation.edit(0, "?!", now=3.0)
    hit = find(conversation, words_of("first"))
    assert hit is not None and hit.turn is None


@given(conversations(), ANY_TEXT)
def test_any_query_works_on_any_conversation(conversation: Conversation, query: str) -> None:
    hit = find(conversation, words_of(query))
    if hit is not None:
        assert hit.in_title or hit.count
        assert "\n" not in hit.excerpt


@given(conversations())
def test_a_word_of_a_question_finds_its_conversation(conversation: Conversation) -> None:
    for turn in conversation.turns:
        for word in words_of(turn.question):
            assert find(conversation, (word,)) is not None


def test_the_store_searches_all_and_passes_over_what_it_cannot_read(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    wanted = about("sky", "why is it blue")
    for conversation in (wanted, about("sea", "deep")):
        store.save_now(conversation)
    (tmp_path / "foreign.json").write_bytes(b"blue")
    (hit,) = store.search("Blue \ud800".replace("\ud800", ""))
    assert (hit.id, hit.excerpt, hit.turn) == (wanted.id, "why is it blue", 0)
    assert store.search("\ud800") == [] and store.search("") == []
