"""What texts that have ended teach of those to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pipeline.speculation.token_index import TokenIndex

LEAST = 8
"""Fewer tokens that are the same say nothing where so much is searched: what follows them is right one time in five."""
_END = -1
"""Stands between two texts."""


class _ClientHistory:
    """The texts of one client, in the order they ended."""

    def __init__(self) -> None:
        self.index = TokenIndex(LEAST)
        self.lengths: deque[int] = deque()
        self.held = 0

    def add(self, tokens: Sequence[int]) -> None:
        self.index.extend(tokens)
        self.index.extend((_END,))
        self.lengths.append(len(tokens) + 1)
        self.held += len(tokens) + 1

    def drop_oldest(self) -> int:
        length = self.lengths.popleft()
        self.index.drop(length)
        self.held -= length
        return length


class History:
    """A bounded number of tokens of texts that have ended, for each client apart.

    No client's texts are ever searched for another: how fast an answer comes would tell what others have written.
    Where there is no room, the client that has most gives its oldest text, so nobody can push out what others have.
    The oldest is the least recently used as well: what was copied from a text has become part of a later one.

    Args:
        capacity: Tokens, all clients together; a longer text counts from its end.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._clients: dict[str, _ClientHistory] = {}
        self.held = 0
        """Tokens, with one at the end of each text."""

    def add(self, client: str, tokens: Sequence[int]) -> None:
        """Take in a text that has ended."""
        kept = tokens[max(0, len(tokens) + 1 - self._capacity) :]
        if not kept:
            return
        while self.held + len(kept) + 1 > self._capacity:
            most = max(self._clients, key=lambda name: self._clients[name].held)
            self.held -= self._clients[most].drop_oldest()
            if not self._clients[most].held:
                del self._clients[most]
        self._clients.setdefault(client, _ClientHistory()).add(kept)
        self.held += len(kept) + 1

    def find(self, client: str, run: Sequence[int], count: int) -> tuple[list[int], int]:
        """What has followed where most of a run's end occurred in a text of the client.

        Returns:
            At most `count` tokens, and how many were the same before them; ([], 0) if it has not occurred.
        """
        texts = self._clients.get(client)
        if texts is None:
            return [], 0
        place, length = texts.index.find(run)
        if place < 0:
            return [], 0
        followed = texts.index.after(place, count)
        if _END in followed:
            del followed[followed.index(_END) :]
        return (followed, length) if followed else ([], 0)
