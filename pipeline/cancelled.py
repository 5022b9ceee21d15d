"""Guesses that turned out wrong while rows that follow them are still on their way."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from pipeline.messages import Verify

_MOST = 1024
"""Sequences that are remembered. Word of one may come when it has ended already, and it is not named again."""


class CancelledBranches:
    """What the head has said is void: of each sequence all branches up to a number.

    The tail finds out by itself. The other stages are told past the chain, so that they know before such rows arrive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._branches: OrderedDict[int, int] = OrderedDict()

    def add(self, branches: Mapping[int, int]) -> None:
        """Of each of these sequences, rows of this branch and of those before it are void."""
        with self._lock:
            for sequence, branch in branches.items():
                self._branches[sequence] = max(branch, self._branches.pop(sequence, branch))
            while len(self._branches) > _MOST:
                self._branches.popitem(last=False)

    def covers(self, verify: Verify) -> bool:
        """Whether these rows are void."""
        with self._lock:
            return verify.branch <= self._branches.get(verify.sequence, -1)

    def forget(self, sequence: int) -> None:
        """A sequence has ended."""
        with self._lock:
            self._branches.pop(sequence, None)
