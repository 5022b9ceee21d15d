"""Prompts of different kinds and lengths; one prompt alone flatters whoever is measured."""

from __future__ import annotations

from pipeline.chat_template import ChatTemplate
from pipeline.tokenizer import Tokenizer
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


def chat_prompts(tokenizer: Tokenizer, facts: ModelFacts, count: int) -> list[tuple[int, ...]]:
    """`count` different prompts as token ids, through the model's chat template where it has one."""
    template = ChatTemplate(facts.chat_template, facts.bos_text, facts.eos_text)
    prompts: list[tuple[int, ...]] = []
    for number in range(count):
        text = QUESTIONS[number % len(QUESTIONS)]
        if number >= len(QUESTIONS):
            text = f"({number}) {text}"
        if facts.chat_template is not None:
            text = template.render([{"role": "user", "content": text}])
        prompts.append(tuple(tokenizer.encode(text, special=facts.chat_template is None)))
    return prompts
