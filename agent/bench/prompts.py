"""Prompts of different kinds and lengths; one prompt alone flatters whoever is measured."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from agent.bench.passages import PASSAGES
from pipeline.chat_template import ChatTemplate
from pipeline.tokenizer import Tokenizer
from shards.errors import RequestError
from shards.manifest import ModelFacts

QUESTIONS = (
    "What is the capital of France?",
    "Tell me a story about a robot and a lighthouse by the sea.",
    "Write a Python function that returns the prime numbers below n, and explain it line by line.",
    "List ten things to pack for a week in the mountains in winter.",
    "Explain to a child why the sky is blue in the day and red in the evening.",
    "Translate into French: The train leaves at half past seven, so we should be there at seven.",
    "Compare a bicycle and a small car for going to work in a town of 100,000 people. Which one costs less a year?",
    "What is 17 times 24? Show every step.",
    "Write a polite letter to a neighbour whose dog barks at night.",
    "Summarise what happens in a plant from sunrise to sunset, with the names of the processes.",
    "Give me a recipe for lentil soup for four people, with amounts in grams.",
    "Who wrote Hamlet, and what is it about? Answer in three sentences.",
    "Invent a name and a motto for a small company that repairs old radios, and say why you chose them.",
    "What should I check first when a computer does not start? Make a numbered list.",
    "Describe the water cycle as if it were a journey of one drop.",
    "Explain the difference between weather and climate with an example of each.",
)

_MIX = (None, 0, 0, 1, 0, 0, 3, 0, None, 0, 1, 0, 0, 6, 0, 0)
"""Passages before the question of each of sixteen prompts; None: the question alone, without the chat template."""


def chat_prompts(tokenizer: Tokenizer, facts: ModelFacts, count: int) -> list[tuple[int, ...]]:
    """`count` different short prompts as token ids, through the model's chat template where it has one."""
    return as_chat(tokenizer, facts, map(_question, range(count)))


def as_chat(tokenizer: Tokenizer, facts: ModelFacts, questions: Iterable[str]) -> list[tuple[int, ...]]:
    """Questions as token ids, through the model's chat template where it has one."""
    encoder = _Encoder(tokenizer, facts)
    return [encoder.chat(question) for question in questions]


def mixed_prompts(tokenizer: Tokenizer, facts: ModelFacts, count: int) -> list[tuple[int, ...]]:
    """`count` different prompts of mixed lengths, from a dozen tokens to several hundred; most are short."""
    encoder = _Encoder(tokenizer, facts)
    prompts: list[tuple[int, ...]] = []
    for number in range(count):
        question, passages = _question(number), _MIX[number % len(_MIX)]
        if passages is None:
            prompts.append(encoder.plain(question))
        else:
            texts = [PASSAGES[(number + i) % len(PASSAGES)] for i in range(passages)]
            prompts.append(encoder.chat("\n\n".join((*texts, question))))
    return prompts


def long_prompt(tokenizer: Tokenizer, facts: ModelFacts, tokens: int, number: int) -> tuple[int, ...]:
    """A prompt of exactly so many tokens; two of different numbers share no more than the template's beginning.

    It is cut off where it is long enough: the benches generate past any sense.
    """
    return _Encoder(tokenizer, facts).chat(_long_text(tokenizer, tokens, number))[:tokens]


def shared_prompts(
    tokenizer: Tokenizer, facts: ModelFacts, tokens: int, number: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two questions after one system prompt of at least so many tokens, another one for each number."""
    system, encoder = _long_text(tokenizer, tokens, number), _Encoder(tokenizer, facts)
    return encoder.chat(_question(2 * number), system), encoder.chat(_question(2 * number + 1), system)


class _Encoder:
    """Texts to token ids, with and without a chat template."""

    def __init__(self, tokenizer: Tokenizer, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._has_template = facts.chat_template is not None
        self._template = ChatTemplate(facts.chat_template, facts.bos_text, facts.eos_text)

    def plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def chat(self, text: str, system: str | None = None) -> tuple[int, ...]:
        """A question, after a system prompt if there is one."""
        together = text if system is None else f"{system}\n\n{text}"
        if not self._has_template:
            return self.plain(together)
        user = {"role": "user", "content": text}
        try:
            messages = [user] if system is None else [{"role": "system", "content": system}, user]
            rendered = self._template.render(messages)
        except RequestError:  # some models know no system prompt
            rendered = self._template.render([{"role": "user", "content": together}])
        return tuple(self._tokenizer.encode(rendered, special=False))


def _question(number: int) -> str:
    text = QUESTIONS[number % len(QUESTIONS)]
    return text if number < len(QUESTIONS) else f"({number}) {text}"


def _long_text(tokenizer: Tokenizer, tokens: int, number: int) -> str:
    text = f"({number}) This is what we know."
    passages = cycle(PASSAGES)
    while len(tokenizer.encode(text, special=False)) < tokens:
        text += f"\n\n{next(passages)}"
    return text
