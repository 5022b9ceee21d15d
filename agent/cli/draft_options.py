"""Options of the commands that run a model: what guesses how answers go on."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.speculation.drafter import MAX_GUESSES

Draft = Annotated[
    str,
    typer.Option(
        metavar="PACKAGE|ngram|none|auto",
        help="What guesses how answers go on, which makes them faster and never changes one. ngram: what followed the "
        "same words before; PACKAGE: that, and where it has no guess a small model of the same tokenizer, on this PC; "
        "auto: ngram.",
        rich_help_panel="Speculation",
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_GUESSES,
        help="Guesses checked at a time, of each answer. Default: as many as pay.",
        show_default=False,
        rich_help_panel="Speculation",
    ),
]
