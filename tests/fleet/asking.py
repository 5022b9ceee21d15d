"""Long answers, so that something can happen in the middle of them."""

from __future__ import annotations

from lab_parts import Lab, Process
from lab_parts.agents import PROGRAM

SECONDS = 180.0
QUESTION = "Tell a long story about a lighthouse and the people who live there."
TOKENS = 300


def ask(lab: Lab) -> Process:
    """Ask on the head's PC, and see the first words."""
    asked = lab.hosts[0].start([PROGRAM, "ask", QUESTION, "--max-tokens", str(TOKENS)])
    asked.wait_for(r"\w+\W+\w+\W+\w+", SECONDS)  # where a mixed chain is cut decides what it says: perhaps no sentences
    return asked
