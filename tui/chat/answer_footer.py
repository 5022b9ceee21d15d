"""What stands under an answer: how fast it was, where its time went, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from tui.amounts import milliseconds
from tui.chat.block import EMPTY, MUTED, Block, Row, TextBlock
from tui.chat.conversation import Answer, Seen
from tui.client.head_client import Timings
from tui.client.plain import clean, one_line

_BAR = 24
_FILLS = "█▓▒░▚▞"
"""The parts of the bar differ in their pattern, not only in their colour."""
_COLOURS = ("$text-primary", "$text-accent", "$text-warning", "$text-success", "$text-secondary", "$text-error")


def footer(answer: Answer) -> Iterator[Block]:
    """The blocks under an answer that doesn't run any more."""
    if answer.state == "stopped":
        yield _line("■ stopped by you", "bold")
    elif answer.state == "broken":
        yield TextBlock(
            Content.assemble(
                ("✖ broke off: ", "bold $text-error"),
                (clean(answer.error) or "nobody knows why", "$text-error"),
                (" (ctrl+r answers again)", MUTED),
            )
        )
    end = answer.end
    if end is None:
        if answer.seen is not None:
            yield _line(" · ".join(_seen(answer.seen)), MUTED)
        return
    if end.finish_reason != "stop":
        yield _line(_how_it_ended(answer), "bold $text-warning")
    yield _line(" · ".join(_figures(answer)), MUTED)
    if end.timings is not None and (parts := time_split(end.timings)):
        yield TimeBar(parts)


def _line(text: str, style: str) -> TextBlock:
    return TextBlock(Content.styled(text, style))


def _how_it_ended(answer: Answer) -> str:
    end = answer.end
    assert end is not None
    if end.finish_reason != "length":
        return f"▲ ended with {one_line(end.finish_reason, 60)}"
    if answer.context is not None and end.prompt_tokens + end.completion_tokens >= answer.context:
        return f"▲ cut: the context of {answer.context:,} tokens is full"
    return f"▲ cut at the limit of {end.completion_tokens:,} tokens"


def _seen(seen: Seen) -> Iterator[str]:
    if seen.pieces_per_second is not None:
        yield f"~{seen.pieces_per_second:.1f} tok/s"
    yield f"first token {milliseconds(seen.first_piece_ms)}"
    yield f"~{seen.pieces:,} token{'s' * (seen.pieces != 1)}"


def _figures(answer: Answer) -> Iterator[str]:
    end = answer.end
    assert end is not None
    timings = end.timings
    if timings is not None:
        if timings.tokens_per_second is not None:
            yield f"{timings.tokens_per_second:.1f} tok/s"
        yield f"first token {milliseconds(timings.first_token_ms)}"
    yield f"{end.completion_tokens:,} token{'s' * (end.completion_tokens != 1)}"
    kept = f" ({end.cached_tokens:,} cached)" if end.cached_tokens else ""
    yield f"prompt {end.prompt_tokens:,}{kept}"
    if timings is not None and timings.acceptance is not None:
        yield f"{timings.acceptance:.0%} of guesses accepted"


def time_split(timings: Timings) -> list[tuple[str, float]]:
    """What a step's time went into, by name, in milliseconds: the stages' computing, the wire, the head."""
    parts = [(one_line(stage.node, 20) or "stage", stage.compute) for stage in timings.stages]
    parts += [("wire", timings.wire), ("head", timings.head)]
    return [(name, value) for name, value in parts if value > 0]


def cells(values: list[float], width: int) -> list[int]:
    """Widths in proportion to the values; they add up to `width`, the largest remainders are rounded up."""
    total = sum(values)
    exact = [value / total * width for value in values]
    widths = [int(value) for value in exact]
    by_remainder = sorted(range(len(values)), key=lambda at: widths[at] - exact[at])
    for at in by_remainder[: width - sum(widths)]:
        widths[at] += 1
    return widths


class TimeBar:
    """A bar of what a step's time went into, and words for it."""

    def __init__(self, parts: list[tuple[str, float]]) -> None:
        self._parts = parts

    def rows(self, width: int) -> list[Row]:
        """Its rows at a width in columns; a part's words stay on one of them."""
        total = sum(value for _, value in self._parts)
        lengths = cells([value for _, value in self._parts], min(_BAR, width))
        lines = [EMPTY]
        legends = []
        for number, ((name, value), length) in enumerate(zip(self._parts, lengths, strict=True)):
            fill, colour = _FILLS[number % len(_FILLS)], _COLOURS[number % len(_COLOURS)]
            lines[0] += Content.styled(fill * length, colour)
            words = f" {name} {value / total:.0%} ({milliseconds(value)})"
            legends.append(Content.assemble(("  "), (fill, colour), (words, MUTED)))
        legends.append(Content.styled("  a step", MUTED))
        for legend in legends:
            if lines[-1].cell_length + legend.cell_length > width:
                lines.append(EMPTY)
            lines[-1] += legend
        return [Row(line.truncate(width)) for line in lines]
