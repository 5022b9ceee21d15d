"""Questions by domain: how well answers can be guessed depends on what they are about.

Extraction and text editing say again much of what they were given, which is what looking up is good at; a chat or a
story hardly does.
"""

from __future__ import annotations

from collections.abc import Mapping

_MEETING = (
    "The meeting about the new playground took place on 4 March in the town hall. Sofia Lind opened the meeting at "
    "seven o'clock. The fence will be built by Brandt and Sons for 6,200 euros. The swings arrive on 18 April. Omar "
    "Haddad will look for volunteers who paint the benches. The next meeting is on 2 May."
)
_ORDERS = (
    "order 4711: Maria Jensen, Copenhagen, three blue lamps, shipped on 3 April\n"
    "order 4712: Tom Okafor, Leeds, one oak table, waiting for payment\n"
    "order 4713: Lucia Ferrari, Turin, twelve glasses, shipped on 5 April\n"
    "order 4714: Jonas Weber, Ulm, two blue lamps, returned\n"
    "order 4715: Aiko Tanaka, Osaka, one wool blanket, shipped on 6 April"
)
_SWIFTS = (
    "The swift spends most of its life in the air. The swift eats, drinks and even sleeps there. In the evening the "
    "swift rises to two thousand metres and glides down in slow circles. A young swift that leaves the nest in July "
    "may not touch anything solid until it breeds, two or three years later."
)
_RECIPE = (
    "Ingredients:\n- 300 g of flour\n- 2 eggs\n- 150 ml of milk\n- 1 pinch of salt\n- 40 g of butter\nSteps:\n"
    "1. Mix the flour, the eggs and the milk.\n2. Add the salt and let the batter rest for twenty minutes.\n"
    "3. Melt the butter in a pan and bake the pancakes until they are golden."
)
_MEAN = (
    "def mean(values):\n"
    "    total = 0\n"
    "    count = 0\n"
    "    for value in values:\n"
    "        total = total + value\n"
    "        count = count + 1\n"
    "    return total / count"
)

CHAT, CODE, TRANSLATION, EXTRACTION = "chat", "code", "translation", "extraction"
EDIT, STORY, MATHS = "text edit", "story", "maths"

DOMAINS: Mapping[str, tuple[str, ...]] = {
    CHAT: (
        "I have a job interview tomorrow and I am nervous. What should I do this evening?",
        "Which is better for a small flat, a cat or a dog? Give me your reasons.",
        "Why do people say that one should not swim after a meal?",
        "My neighbour plays the piano late at night. How do I tell him without a quarrel?",
    ),
    CODE: (
        "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
        "Write a Python class for a bank account with the methods deposit, withdraw and balance.",
        "Write an SQL statement that lists the customers who ordered more than ten times in 2023.",
        "Write a JavaScript function that removes all duplicates from an array, and show how to call it.",
    ),
    TRANSLATION: (
        "Translate into French: The train leaves at half past seven, so we should be at the station at seven. "
        "Bring warm clothes, because it will be cold in the mountains.",
        "Translate into Spanish: My sister lives in a small house near the sea with her two children and a dog.",
        "Translate into German: The museum is closed on Mondays. On all other days it opens at ten in the morning.",
        "Translate into Italian: I would like a table for four people at eight o'clock, near the window if possible.",
    ),
    EXTRACTION: (
        f"Extract all people and what they do from the following text:\n\n{_MEETING}",
        f"List all ingredients of this recipe:\n\n{_RECIPE}",
        f"List all orders that were shipped, each on a line of its own exactly as it is written here.\n\n{_ORDERS}",
        f"What are the dates in the following text? Quote the sentence of each date.\n\n{_MEETING}",
    ),
    EDIT: (
        f"Rewrite the following text in the past tense:\n\n{_SWIFTS}",
        f"Add type hints to this Python function:\n\n```python\n{_MEAN}\n```",
        f"Rewrite the following recipe for twice as many people:\n\n{_RECIPE}",
        f"Replace every 'swift' by 'albatross' in the following text:\n\n{_SWIFTS}",
    ),
    STORY: (
        "Tell me a story about a lighthouse keeper who finds a letter in a bottle.",
        "Write the beginning of a fairy tale in which a fox and a heron share a house.",
        "Tell a short story about the last day of a village school.",
        "Write a story about a robot that learns to bake bread.",
    ),
    MATHS: (
        "What is 17 times 24? Show every step.",
        "A train goes 180 km in two hours and a quarter. What is its average speed? Explain step by step.",
        "Solve 3x + 7 = 31 for x and check the result.",
        "A shirt costs 40 euros and is reduced by 15 percent, then by another 10 percent. What does it cost now?",
    ),
}
"""By each of them some questions."""
