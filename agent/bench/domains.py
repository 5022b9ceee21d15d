"""Questions by domain: how well answers can be guessed depends on what they are about.

Extraction and text editing say again much of what they were given, which is what looking up is good at; a chat or a
story hardly does.
"""

from __future__ import annotations

from collections.abc import Mapping

_LETTER = (
    "Dear Mr Halvorsen, the roof of the boat house was inspected on 12 May by Ines Kuhl of Kuhl Carpentry. Two beams on "
    "the north side are rotten and have to be replaced before the autumn storms. The work costs 3,480 euros and takes "
    "four days. Please send your answer to ines@kuhl-carpentry.example or call 0170 555 0142 before the end of June."
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
    "swift rises to two thousand metres and glides down in slow circles. A young swift that leaves the nest in July may "
    "not touch anything solid until it breeds, two or three years later."
)
_FUNCTION = (
    "def total(prices, discount):\n"
    "    result = 0\n"
    "    for price in prices:\n"
    "        if price > 100:\n"
    "            result = result + price * (1 - discount)\n"
    "        else:\n"
    "            result = result + price\n"
    "    return result"
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
        f"Copy from this letter every sentence that has a number or a date in it, word for word.\n\n{_LETTER}",
        f"List all orders that were shipped, each on a line of its own exactly as it is written here.\n\n{_ORDERS}",
        f"Write the name and the city of each person in this list.\n\n{_ORDERS}",
        f"Quote the sentences of this text that say where the bird is.\n\n{_SWIFTS}",
    ),
    EDIT: (
        f"Write this text again, but with 'the albatross' in place of 'the swift'. Change nothing else.\n\n{_SWIFTS}",
        f"Rename the variable result to amount in this function and print the whole function.\n\n{_FUNCTION}",
        f"Correct the spelling of this letter and write all of it again.\n\n{_LETTER.replace('rotten', 'roten')}",
        f"Write this list again with the word 'parcel' in place of the word 'order'.\n\n{_ORDERS}",
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
