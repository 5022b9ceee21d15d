"""A stage with a fake draft model, for tests of the session that drives one: its text is a hash of what it holds."""

from __future__ import annotations

from collections import deque

from pipeline.messages import NOT_YET, Free, Open, Step, StepResult, Token

VOCABULARY = 11


def next_token(tokens: list[int]) -> int:
    """What the model says after these."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


class DraftStage:
    """Holds rows in the order they come, and checks what is told to it.

    Args:
        kv_tokens: Tokens it holds, in blocks.
        block: Tokens of a block.
    """

    def __init__(self, kv_tokens: int, block: int) -> None:
        self._capacity, self._block = kv_tokens // block, block
        self.rows = 0
        self._kv: dict[int, list[int]] = {}
        self._opened: dict[int, Open] = {}
        self._latest: dict[int, tuple[int, int]] = {}
        self._waiting: deque[Step] = deque()

    def send(self, step: Step) -> None:
        self._waiting.append(step)

    def work(self) -> StepResult | None:
        """Do the next step."""
        if not self._waiting:
            return None
        step = self._waiting.popleft()
        for operation in step.operations:
            if isinstance(operation, Open):
                self._opened[operation.sequence] = operation
                self._kv.setdefault(operation.sequence, [])
            elif isinstance(operation, Free):
                self._opened.pop(operation.sequence, None)
                self._kv.pop(operation.sequence, None)
                self._latest.pop(operation.sequence, None)
        drawn: list[Token] = []
        start = 0
        assert sum(rows.count for rows in step.rows) == len(step.tokens)
        assert len({rows.sequence for rows in step.rows}) == len(step.rows)
        for rows in step.rows:
            held, read = self._kv[rows.sequence], step.tokens[start : start + rows.count].tolist()
            start += rows.count
            self.rows += rows.count
            if read[0] == NOT_YET:
                position, token = self._latest[rows.sequence]
                assert position == rows.past == len(held)
                read[0] = token
            assert NOT_YET not in read and rows.past <= len(held)
            held[rows.past :] = read
            if rows.sample:
                token = next_token(held)
                self._latest[rows.sequence] = len(held), token
                drawn.append(Token(rows.sequence, len(held), token))
                opened = self._opened[rows.sequence]
                if opened.sampling.needs_history:
                    assert list(opened.history) == held[: len(opened.history)]
        assert sum(-(-len(held) // self._block) for held in self._kv.values()) <= self._capacity
        return StepResult(step.number, tuple(drawn))

    @property
    def sequences(self) -> int:
        """Those it holds."""
        return len(self._kv)
