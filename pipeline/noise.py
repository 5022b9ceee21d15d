"""Gumbel noise by counter: the noise of a token is a function of (seed, position, token id) and of nothing else.

Adding standard Gumbel noise to scaled logits and taking the largest draws from their softmax (the Gumbel-max trick).
Because there is no generator with a state, a draw does not depend on the batch, the split of the model, what was
drawn before, or whether a draft asked first. Changing anything here changes every seeded answer: a test holds
golden values.

The counter is hashed like this: (seed, position) becomes a 64-bit key by SplitMix64's output function (Steele, Lea,
Flood, "Fast splittable pseudorandom number generators", 2014); ids and keyed ids go through a 32-bit avalanche
permutation of two multiplications (the family of Wellons' "Prospecting for hash functions", with the constants
found by TheIronBorn in hash-prospector's best list). 32-bit products, because vector units have them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_MASK64 = 2**64 - 1
_NEAR = 8.0
"""Tokens further than this below the largest logit need so much more noise that hardly any is left to compute."""


def spread(ids: NDArray[np.integer]) -> NDArray[np.uint32]:
    """Hash token ids [n] on their own, once for a vocabulary: the half of the work that needs no key."""
    return _avalanche(ids.astype(np.uint32))


def bits(seed: int, position: int, spread_ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The random bits [n] behind the noise, which grows with them; `spread_ids` [n] is from `spread`."""
    key = _mix64(_mix64(seed & _MASK64) ^ position)
    keyed = spread_ids ^ np.uint32(key & 0xFFFFFFFF)
    keyed *= np.uint32(key >> 32 | 1)
    return _avalanche(keyed)


def gumbel(random: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Standard Gumbel noise [n] of random bits [n]: -log(-log(u)) with u in the middle of one of 2**32 cells.

    So it lies between -3.13 and 22.87. In float64, where what libraries' logarithms differ by decides no draw.
    """
    noise: NDArray[np.float64] = -np.log(-np.log((random + 0.5) * 2.0**-32))
    return noise


def pick(seed: int, position: int, logits: NDArray[np.float32], spread_ids: NDArray[np.uint32]) -> int:
    """Draw one index from softmax(logits): the exact argmax of logits + noise, the lower index on a tie.

    Logarithms are taken only of tokens that can win. The noise grows with the bits, so a token that needs noise
    above some value to beat a score already reached needs bits above some number.

    Args:
        seed: Of the request.
        position: Of the token to draw.
        logits: [n], already divided by the temperature; -inf never wins. Ascending by token id.
        spread_ids: [n], `spread` of the candidates' ids.
    """
    random = bits(seed, position, spread_ids)
    likeliest = int(logits.argmax())
    top = float(logits[likeliest])
    first = np.array([likeliest, random.argmax()])
    best = float((logits[first] + gumbel(random[first])).max())
    cut = np.float32(top - _NEAR)
    can_win = (random >= _fewest_bits(best - top)) & (logits >= cut)
    can_win |= random >= _fewest_bits(best - float(cut))
    contenders = np.flatnonzero(can_win)
    return int(contenders[(logits[contenders] + gumbel(random[contenders])).argmax()])


def _fewest_bits(noise: float) -> np.uint32:
    """Bits below this give noise below `noise` (with a few cells of room for rounding)."""
    cell = math.exp(-math.exp(min(-noise, 700.0))) * 2.0**32
    return np.uint32(min(max(int(cell) - 4, 0), 2**32 - 1))


def _mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


def _avalanche(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Permute 32-bit words in place so that each input bit flips each output bit half of the time."""
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x21F0AAAD)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0xD35A2D97)
    x ^= x >> np.uint32(15)
    return x
