"""Text that shows how far it has come: Markdown as models write it, with a mark every few words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

MARK = re.compile(r"q(\d{6})q")
"""A mark; it is one word, so no line is broken in it."""

_BLOCKS = (
    "## Where a token goes @\n\n",
    "A stage takes the hidden states of the rows that arrive, @ runs its own layers over them, and passes them on "
    "to the next one. @ Only the first stage knows *token ids*, and only the last one has the **head matrix**: @ what "
    "is between them is one row of `hidden_size` numbers for each token, @ and a link carries nothing else, however "
    "long the prompt is. @\n\n",
    "1. The head renders the chat template @ and counts tokens.\n"
    "2. The scheduler fills a step with rows @ of many requests.\n"
    "3. Each stage computes, @ and keeps keys and values of its own layers.\n"
    "4. The tail samples, @ and tells the head.\n\n",
    "```python\n"
    "def step_@(batch: Batch) -> Rows:\n"
    '    """Run the layers of this stage."""\n'
    "    rows_@ = embed(batch) if is_first else receive(batch.rows)\n"
    "    for layer in layers:  # @\n"
    "        rows = layer(rows, cache[layer.index])\n"
    "    return send(rows) if not is_tail else sample(rows)  # @\n"
    "```\n\n",
    "> What a stage cannot do @ it says at once, with both numbers. @\n\n",
    "| part | holds | sends |\n"
    "| --- | --- | --- |\n"
    "| first | embedding | rows @ |\n"
    "| tail | head matrix | tokens @ |\n\n",
    "With eight users the steps overlap, @ so that every stage has work while the others have some. @ A long prompt is "
    "cut in chunks, @ which go between the tokens of the rest; nobody waits for a whole prompt. @\n\n",
)


def pieces(numbers: Iterator[int]) -> Iterator[str]:
    """The text, endlessly, in pieces as large as a token; a mark is made of the next number."""
    while True:
        for block in _BLOCKS:
            for piece in re.findall(r"\s*\S{1,7}|\s+", block):
                yield piece.replace("@", f"q{next(numbers):06}q") if "@" in piece else piece


def text(length: int) -> str:
    """The beginning of the text, of `length` characters."""
    parts: list[str] = []
    size = 0
    for piece in pieces(count()):
        parts.append(piece)
        size += len(piece)
        if size >= length:
            break
    return "".join(parts)[:length]
