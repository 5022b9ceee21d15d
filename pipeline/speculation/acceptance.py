"""How far guesses come true: by their kind and per sequence, by how many tokens of a guess came true before."""

from __future__ import annotations

from collections import defaultdict

from pipeline.speculation.drafter import MAX_GUESSES

_MEMORY = 0.97
"""What an observation of a sequence keeps of the weight it had before the next one at its depth."""
_SHARED_MEMORY = 0.998
"""The same of what all sequences share."""
_FORGETTING = 0.98
"""What an observation of a sequence keeps of its weight with each of its tokens that nothing was learnt from: else one
that was unlucky would never be guessed for again."""
_PRIOR = 8.0
"""Observations of its own that the experience with all sequences outweighs."""
_FIRST = 0.75, 2.0
"""What is thought before anything is known, and how many observations that counts for: hope costs little, for it is
soon learnt better, and who does not try learns nothing."""


class _Counts:
    """Fading counts of hits and trials by depth."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._hits = [0.0] * MAX_GUESSES
        self._trials = [0.0] * MAX_GUESSES
        self.learnt_at = 0
        """Tokens of the sequence when something was learnt last."""

    def add(self, depth: int, hit: bool) -> None:
        self._hits[depth] = self._memory * self._hits[depth] + hit
        self._trials[depth] = self._memory * self._trials[depth] + 1.0

    def mixed(self, depth: int, prior: float, weight: float) -> float:
        return (self._hits[depth] + weight * prior) / (self._trials[depth] + weight)

    def fade(self, part: float) -> None:
        self._hits = [part * hits for hits in self._hits]
        self._trials = [part * trials for trials in self._trials]


class Acceptance:
    """Learns from every guess that can be compared with what came, whether its row was run or not.

    Of the guess at depth d only those count whose d tokens before it had come true: the probability that k tokens
    of a guess come true is the product of the first k. Those of one kind are taken to be alike, and each sequence
    is believed over all of them as it goes on.
    """

    def __init__(self) -> None:
        self._shared: dict[str, _Counts] = defaultdict(lambda: _Counts(_SHARED_MEMORY))
        self._own: dict[str, dict[str, _Counts]] = defaultdict(lambda: defaultdict(lambda: _Counts(_MEMORY)))

    def learn(self, key: str, kind: str, depth: int, hit: bool, length: int = 0) -> None:
        """A guess of a sequence, `depth` tokens of which had come true, went on right or wrong.

        `length`: tokens of the sequence.
        """
        depth = min(depth, MAX_GUESSES - 1)
        self._shared[kind].add(depth, hit)
        own = self._own[key][kind]
        if (missed := length - own.learnt_at - 1) > 0:
            own.fade(_FORGETTING**missed)
        own.learnt_at = length
        own.add(depth, hit)

    def end(self, key: str) -> None:
        """A sequence has ended."""
        self._own.pop(key, None)

    def chances(self, key: str, kind: str, depth: int, count: int, length: int = 0) -> list[float]:
        """Probabilities that the next 1, 2, ... `count` tokens of a guess come true, if `depth` have."""
        shared, own = self._shared[kind], self._own[key].get(kind) if key in self._own else None
        chance, chances = 1.0, []
        prior = _FIRST[0]
        weight = _PRIOR if own is None else _PRIOR / _FORGETTING ** max(0, length - own.learnt_at)
        for d in range(depth, depth + count):
            d = min(d, MAX_GUESSES - 1)
            prior = shared.mixed(d, prior, _FIRST[1])  # of a depth not seen, what the one before it says
            chance *= own.mixed(d, prior, weight) if own is not None else prior
            chances.append(chance)
        return chances
