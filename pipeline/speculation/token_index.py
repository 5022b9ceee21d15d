"""Where a run of tokens has been before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CANDIDATES = 32
"""Places that are looked at, the latest: some runs are everywhere."""

_BITS = 21
"""Of a token in a key; in larger vocabularies keys may be the same by chance, which is seen when they are compared."""


class TokenIndex:
    """A line of tokens that grows at its end, shrinks at its front, and finds where its runs occurred.

    For each run of `least` tokens that another token follows it knows the latest place, and for each place the one
    before (chains as in LZ77 compressors): some hundred nanoseconds and some two hundred bytes a token.

    Args:
        least: Tokens of the shortest runs that are found.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._mask = (1 << _BITS * least) - 1
        self._tokens: list[int] = []
        self._before: list[int] = []
        """Of each place the one before with the same run; -1: none."""
        self._latest: dict[int, int] = {}
        self._dropped = self._kept_from = 0
        """Places that are counted but not kept any more; and those not to be found any more."""
        self._front = self._end = 0
        """Keys of the runs before the first and after the last token."""

    def __len__(self) -> int:
        """Tokens since the beginning, whether dropped or not."""
        return self._dropped + len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Let tokens, of -1 or more, follow."""
        latest, before, line, mask = self._latest, self._before, self._tokens, self._mask
        place, key = len(self), self._end
        for token in tokens:
            before.append(latest.get(key, -1))
            latest[key] = place
            line.append(token)
            key = (key << _BITS | token + 1) & mask
            place += 1
        self._end = key

    def drop(self, count: int) -> None:
        """Forget so many tokens at the front."""
        for place in range(self._kept_from, self._kept_from + count):
            if self._latest.get(self._front) == place:
                del self._latest[self._front]
            self._front = (self._front << _BITS | self._tokens[place - self._dropped] + 1) & self._mask
        self._kept_from += count
        if 2 * (self._kept_from - self._dropped) > len(self._tokens):  # seldom, as moving the rest takes its time
            del self._tokens[: self._kept_from - self._dropped]
            del self._before[: self._kept_from - self._dropped]
            self._dropped = self._kept_from

    def find(self, run: Sequence[int]) -> tuple[int, int]:
        """Where most of the end of a run has occurred, the latest such place.

        Args:
            run: Tokens of 0 or more.

        Returns:
            The place after it, and how many tokens are the same before it; (-1, 0) if fewer than `least`.
        """
        key = 0
        for token in run[-self._least :]:
            key = key << _BITS | token + 1
        place, best, most = self._latest.get(key & self._mask, -1), -1, self._least - 1
        tokens, dropped = self._tokens, self._dropped
        for _ in range(CANDIDATES):
            if place < self._kept_from:
                break
            length, longest = 0, min(len(run), place - self._kept_from)
            while length < longest and tokens[place - dropped - 1 - length] == run[-1 - length]:
                length += 1
            if length > most:
                best, most = place, length
                if length == len(run):
                    break
            place = self._before[place - dropped]
        return (best, most) if best >= 0 else (-1, 0)

    def after(self, place: int, count: int) -> list[int]:
        """At most `count` tokens from a place on."""
        return self._tokens[place - self._dropped : place - self._dropped + count]
