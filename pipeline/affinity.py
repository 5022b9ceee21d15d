"""Which copy of a model has lately begun a prompt like this one, and so has its beginning in its prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

_CHUNK = 128
"""Tokens at a time. A shared beginning of fewer is computed again as fast as it is found."""

_REMEMBERED = 8192
"""Chunks of prompts: two hundred and more of 4096 tokens."""

_C = TypeVar("_C")


class PrefixAffinity(Generic[_C]):
    """Remembers where prompts went. Pure; forgets what was used longest ago.

    Chunks are known by hashes that go on from chunk to chunk. Two prompts that share one by chance cost a detour at
    most: what a copy really has, it compares by tokens.
    """

    def __init__(self) -> None:
        self._places: dict[int, _C] = {}
        """By the hash of a beginning; what was used last comes last."""

    def find(self, prompt: Sequence[int]) -> _C | None:
        """The copy that has had the longest beginning of a prompt; None if it has none worth looking for."""
        place = None
        for key in _beginnings(prompt):
            if key not in self._places:
                break
            place = self._places[key]
        return place

    def note(self, prompt: Sequence[int], copy: _C) -> None:
        """A prompt has gone to a copy."""
        for key in islice(_beginnings(prompt), _REMEMBERED):
            self._places.pop(key, None)
            self._places[key] = copy
        while len(self._places) > _REMEMBERED:
            del self._places[next(iter(self._places))]

    def keep(self, is_there: Callable[[_C], bool]) -> None:
        """Forget the copies that are not there any more."""
        self._places = {key: copy for key, copy in self._places.items() if is_there(copy)}


def _beginnings(prompt: Sequence[int]) -> Iterator[int]:
    key = 0
    for start in range(0, len(prompt) - _CHUNK + 1, _CHUNK):
        key = hash((key, *prompt[start : start + _CHUNK]))
        yield key
