"""Options of the commands that run a model: what guesses how answers go on."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.fleet.head.draft_node import AUTO, HEAD_PC
from pipeline.speculation.drafter import MAX_GUESSES
from shards.errors import ConfigurationError

Draft = Annotated[
    str,
    typer.Option(
        metavar="PACKAGE|ngram|none|auto",
        help="What guesses how answers go on, which makes them faster and never changes one. ngram: what followed the "
        "same words before; PACKAGE: that or a small model of the same tokenizer, whichever is more often right; auto: "
        "ngram.",
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
DraftNode = Annotated[
    str,
    typer.Option(
        metavar=f"{AUTO}|{HEAD_PC}|NAME",
        help=f"Which PC of the fleet runs the model that guesses. {AUTO}: one that carries no layers and is near, else "
        f"this one; {HEAD_PC}: this one; NAME: that one, while it carries no layers.",
        rich_help_panel="Speculation",
    ),
]


def check_draft_node(node: str, draft: str, *, is_fleet: bool) -> None:
    """Whether there can be a draft model on the node that is asked for.

    Raises:
        ConfigurationError: there is no fleet, or no draft model.
    """
    from pipeline.speculation import draft_choice

    if node in (AUTO, HEAD_PC):
        return
    if not is_fleet:
        raise ConfigurationError(
            f"with --local-stages there is no other PC that could guess, such as {node!r}",
            where="--draft-node",
            hint="Leave --draft-node out, or serve without --local-stages.",
        )
    if draft in (draft_choice.NONE, draft_choice.NGRAM, draft_choice.AUTO):
        raise ConfigurationError(
            f"with --draft {draft} there is no model that could run on {node!r}",
            where="--draft-node",
            hint="Say which model guesses: --draft PACKAGE.",
        )
