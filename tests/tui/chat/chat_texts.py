"""What conversations are tried with."""

from __future__ import annotations

from hypothesis import strategies as st

from tui.chat.attachment import Attachment
from tui.chat.conversation import Conversation
from tui.client.head_client import End, StagePart, Timings

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
"""Lone surrogates and control characters included."""

END = End(
    finish_reason="stop",
    prompt_tokens=12,
    cached_tokens=4,
    completion_tokens=7,
    timings=Timings(first_token_ms=81.5, tokens_per_second=20.25, stages=(StagePart("pc-1", 11.0, 2.5),), wire=1.5),
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Anything that a user can make of a conversation."""
    conversation = Conversation()
    conversation.title = draw(ANY_TEXT)
    conversation.system_prompt = draw(ANY_TEXT)
    for number in range(draw(st.integers(0, 4))):
        files = draw(st.lists(st.builds(Attachment, name=ANY_TEXT, text=ANY_TEXT), max_size=2))
        if conversation.turns and draw(st.booleans()):
            index = draw(st.integers(0, len(conversation.turns) - 1))
            conversation.edit(index, draw(ANY_TEXT), files, now=float(number))
        else:
            conversation.ask(draw(ANY_TEXT), files, now=float(number))
        for _ in range(draw(st.integers(0, 3))):
            answer = conversation.begin_answer(draw(ANY_TEXT), now=float(number))
            answer.add(draw(ANY_TEXT))
            match draw(st.sampled_from(["whole", "stopped", "broken"])):
                case "whole":
                    answer.finish(END)
                case "stopped":
                    answer.stop()
                case _:
                    answer.break_off(draw(ANY_TEXT))
    conversation.draft = draw(ANY_TEXT)
    return conversation
