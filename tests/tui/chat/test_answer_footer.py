from hypothesis import given
from hypothesis import strategies as st
from scripted_chat import TIMINGS, end

from tui.chat.answer_footer import cells, footer, time_split
from tui.chat.conversation import Answer, Seen
from tui.client.head_client import StagePart, Timings


def rows_of(answer: Answer, width: int = 120) -> list[str]:
    return [row.content.plain for block in footer(answer) for row in block.rows(width)]


def whole(reason: str = "stop", tokens: int = 3, prompt: int = 10, timings: Timings | None = TIMINGS) -> Answer:
    answer = Answer(text="Hello", context=4096)
    answer.finish(end(reason, tokens, prompt, timings))
    return answer


def test_a_plain_answer_says_its_figures_and_where_the_time_went() -> None:
    figures, bar = rows_of(whole())
    assert figures == "24.1 tok/s · first token 180 ms · 3 tokens · prompt 10 (4 cached) · 61% of guesses accepted"
    assert bar.startswith("█" * 12 + "▓" * 7 + "▒" * 4 + "░")
    assert bar.endswith("█ pc-1 50% (20 ms)  ▓ pc-2 30% (12 ms)  ▒ wire 15% (6.0 ms)  ░ head 5% (2.0 ms)  a step")


def test_a_narrow_footer_breaks_between_parts() -> None:
    rows = rows_of(whole(), width=30)
    assert max(map(len, rows)) <= 30
    assert "pc-2 30% (12 ms)" in "\n".join(rows)


def test_without_timings_there_is_no_bar() -> None:
    assert rows_of(whole(timings=None)) == ["3 tokens · prompt 10 (4 cached)"]
    assert rows_of(whole(timings=Timings(5.0, None))) == ["first token 5.0 ms · 3 tokens · prompt 10 (4 cached)"]


def test_other_ends_are_said() -> None:
    assert rows_of(whole(reason="length", tokens=64))[0] == "▲ cut at the limit of 64 tokens"
    assert rows_of(whole(reason="length", tokens=100, prompt=3996))[0] == "▲ cut: the context of 4,096 tokens is full"
    assert rows_of(whole(reason="tool\x1b[2J\ncalls"))[0] == "▲ ended with tool\ufffd[2J calls"


def test_a_full_context_is_that_of_the_model_that_answered() -> None:
    answer = whole(reason="length", tokens=100, prompt=3996)
    answer.context = 32_768
    assert rows_of(answer)[0] == "▲ cut at the limit of 100 tokens"
    answer.context = None
    assert rows_of(answer)[0] == "▲ cut at the limit of 100 tokens"


def test_stopped_and_broken_are_said_in_words() -> None:
    stopped, broken = Answer(text="Hal"), Answer(text="Hal")
    stopped.stop()
    broken.break_off("pc-2 [red]left[/red] \x1b[31m")
    assert rows_of(stopped) == ["■ stopped by you"]
    assert rows_of(broken) == ["✖ broke off: pc-2 [red]left[/red] \ufffd[31m (ctrl+r answers again)"]


def test_what_was_seen_of_an_answer_without_an_end_is_told() -> None:
    answer = Answer(text="Hal")
    answer.stop(Seen(pieces=57, first_piece_ms=184.0, pieces_per_second=31.4))
    assert rows_of(answer) == ["■ stopped by you", "~31.4 tok/s · first token 184 ms · ~57 tokens"]


def test_names_of_nodes_are_foreign_text() -> None:
    parts = time_split(Timings(1.0, None, (StagePart("a\x1b[2J\nb" + "x" * 50, 1.0, 0.0), StagePart("", 1.0, 0.0))))
    assert [name for name, _ in parts] == ["a\ufffd[2J b" + "x" * 12 + "…", "stage"]


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=8), st.integers(1, 60))
def test_the_bar_is_as_wide_as_it_should_be(values: list[float], width: int) -> None:
    widths = cells(values, width)
    assert sum(widths) == width
    assert all(abs(value / sum(values) * width - got) < 1 for value, got in zip(values, widths, strict=True))
