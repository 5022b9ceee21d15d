"""What the last stage of a simulation samples, and which rows of guesses it finds void."""

from __future__ import annotations

from pipeline.messages import Free, Step, Token


def made_up(sequence: int, position: int) -> int:
    """The token at a position, the same in every run."""
    return (1_000_003 * sequence + 2 * position) & 0x7FFF_FFFF


class ModelledTail:
    """Samples made-up tokens; rows of guesses as long as these are right.

    Args:
        has_guesses: Whether a drafter guesses what comes. Then all answers have the same tokens.
    """

    def __init__(self, has_guesses: bool = False) -> None:
        self._has_guesses = has_guesses
        self._last: dict[int, Token] = {}
        self._missed: dict[int, int] = {}
        """Number of the step in which a guess for a sequence was wrong last."""

    def void(self, step: Step) -> dict[int, int]:
        """Sequences whose rows of guesses follow a wrong one, with the number of the step that has shown it."""
        starts = {part.sequence: part.past + part.count - part.sample for part in step.rows}
        void = {}
        for verify in step.verifies:
            last = self._last.get(verify.sequence)
            if last is None or (last.position, last.token) != (starts[verify.sequence], verify.tokens[0]):
                void[verify.sequence] = self._missed.get(verify.sequence, -1)
        return void

    def sample(self, step: Step, void: dict[int, int]) -> tuple[Token, ...]:
        """The tokens of a step, in the order of the steps."""
        guesses = {verify.sequence: verify.tokens for verify in step.verifies}
        tokens: list[Token] = []
        for part in step.rows:
            if not part.sample or part.sequence in void:
                continue
            guessed = guesses.get(part.sequence)
            first = part.past + part.count - part.sample + 1
            for i in range(part.sample):
                if guessed is not None and i and guessed[i] != tokens[-1].token:
                    break
                name = 0 if self._has_guesses else part.sequence
                tokens.append(Token(part.sequence, first + i, made_up(name, first + i)))
            self._last[part.sequence] = tokens[-1]
            self._missed[part.sequence] = step.number
        for operation in step.operations:
            if isinstance(operation, Free):
                self._last.pop(operation.sequence, None)
                self._missed.pop(operation.sequence, None)
        return tuple(tokens)
