"""What guesses how texts go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pipeline.messages import Sampling

MAX_GUESSES = 32
"""Most tokens that are guessed of one text at a time."""


MODEL = "model"
"""The kind of guesses that a model makes."""


Want = Literal["free", "all", "any"]
"""Only guesses that cost no time; else those that do, if there are any: all of them together, or as they are made."""


@dataclass(frozen=True, slots=True)
class DraftText:
    """A text that is being written."""

    key: str
    """Names the request."""
    client: str
    """Whose it is. What one client's texts teach is never used for another's."""
    tokens: Sequence[int]
    """Prompt and answer so far. It grows from call to call and is never changed otherwise; only for reading."""
    guesses: Sequence[int]
    """Tokens that were guessed to follow, not confirmed yet; new ones follow them."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a drafter says of itself."""

    name: str
    off: str | None = None
    """Why it guesses no more; None while it does."""
    texts: int = 0
    """Texts it follows."""
    held_tokens: int = 0
    """Tokens it remembers."""
    guess_ms: float = 0.0
    """What a guess takes, by the latest ones; 0: they are looked up."""
    node: str | None = None
    """Whose computer it runs on, by the name that a chain has for it; None: on the head's thread alone."""


class Drafter(Protocol):
    """Guesses tokens. It belongs to one head, on whose thread all methods but `close` are called: none may block.

    A guess can be anything: the tail confirms what is right and throws the rest away.
    """

    on_ready: Callable[[], None]
    """Set by the head. Called, from any thread, when guesses that were being worked on are there or are given up."""

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        """At most `count` (1 to MAX_GUESSES) tokens that follow the text and its guesses.

        Args:
            text: What they follow.
            count: How many.
            want: Which. By "any" come those that are there already, while the rest is being made.
            piece: By "any", at least so many at a time.

        Returns:
            The tokens, none if it has no guess; or None while it works on them: ask again after `on_ready`. It may be
            asked about another state of the text meanwhile, as tokens are confirmed or other ones came.
        """
        ...

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """A text has ended. Forget it, or learn from it; called once for each text, whether asked about or not."""
        ...

    def kind(self, key: str) -> str:
        """What the latest guess for a text rests on: those of one kind come true about equally often."""
        ...

    def cost_ms(self, count: int) -> float:
        """Time until so many guesses of one text that are not free are there, as far as is known; 0: all are free."""
        ...

    @property
    def facts(self) -> DrafterFacts:
        """What it does; from any thread."""
        ...

    def close(self) -> None:
        """Let go of what it holds; after the head's thread has ended."""
        ...
