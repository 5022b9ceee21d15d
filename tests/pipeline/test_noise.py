from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline import noise

VOCABULARY = 49_152
IDS = np.arange(VOCABULARY)


def gumbel(seed: int, position: int, ids: NDArray[np.integer] = IDS) -> NDArray[np.float64]:
    return noise.gumbel(noise.bits(seed, position, noise.spread(ids)))


STREAMS = {
    "token ids": lambda: gumbel(1, 7, np.arange(200_000)),
    "high token ids": lambda: gumbel(1, 7, np.arange(2**31, 2**31 + 200_000)),
    "positions": lambda: np.array([gumbel(1, position, np.array([11]))[0] for position in range(20_000)]),
    "seeds": lambda: np.array([gumbel(seed, 7, np.array([11]))[0] for seed in range(20_000)]),
    "diagonal": lambda: np.array([gumbel(i, i, np.array([i]))[0] for i in range(20_000)]),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_is_standard_gumbel_along_each_argument(stream: str) -> None:
    values = np.sort(STREAMS[stream]())
    n = len(values)
    expected = np.exp(-np.exp(-values))  # the distribution function
    observed = np.arange(n + 1) / n
    distance = max(np.abs(expected - observed[1:]).max(), np.abs(expected - observed[:-1]).max())
    assert distance * math.sqrt(n) < 1.95  # Kolmogorov-Smirnov, p = 0.001
    assert abs(values.mean() - np.euler_gamma) < 4 * math.pi / math.sqrt(6 * n)


@pytest.mark.parametrize("shift", range(0, 32, 8))
def test_every_byte_is_uniform(shift: int) -> None:
    counts = np.zeros(256)
    for position in range(20):
        counts += np.bincount(noise.bits(3, position, noise.spread(IDS)) >> np.uint32(shift) & 255, minlength=256)
    expected = counts.sum() / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) < 4 * math.sqrt(2 * 255)


NEIGHBOURS = {
    "token": (gumbel(5, 100)[1:], gumbel(5, 100)[:-1]),
    "position": (gumbel(5, 100), gumbel(5, 101)),
    "seed": (gumbel(5, 100), gumbel(6, 100)),
    "seed and position swapped": (gumbel(5, 100), gumbel(100, 5)),
    "seed up, position down": (gumbel(5, 100), gumbel(6, 99)),
    "seed plus 2**32": (gumbel(5, 100), gumbel(5 + 2**32, 100)),
    "distant position": (gumbel(5, 100), gumbel(5, 100 + 2**20)),
    "token and position": (gumbel(5, 100)[1:], gumbel(5, 101)[:-1]),
    "every 256th token": (gumbel(5, 100)[256:], gumbel(5, 100)[:-256]),
}


@pytest.mark.parametrize("which", NEIGHBOURS)
def test_neighbours_are_independent(which: str) -> None:
    a, b = NEIGHBOURS[which]
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))
    # pairs of quartiles, so that dependence without correlation is seen too
    quartile = -np.log(-np.log([0.25, 0.5, 0.75]))
    counts = np.bincount(np.searchsorted(quartile, a) * 4 + np.searchsorted(quartile, b), minlength=16)
    expected = len(a) / 16
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 15 + 4 * math.sqrt(2 * 15)


def test_changing_one_bit_of_an_argument_changes_half_of_the_bits() -> None:
    base = noise.bits(12345, 678, noise.spread(IDS))
    changed = [
        *(noise.bits(12345 ^ 1 << bit, 678, noise.spread(IDS)) for bit in range(0, 64, 7)),
        *(noise.bits(12345, 678 ^ 1 << bit, noise.spread(IDS)) for bit in range(0, 20, 3)),
        *(noise.bits(12345, 678, noise.spread(IDS ^ 1 << bit)) for bit in range(0, 18, 3)),
    ]
    for bits in changed:
        flipped = np.unpackbits((base ^ bits).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 0.01


def test_golden_values() -> None:
    """A change of the function changes the answer of every seed: it must be meant."""
    spread = noise.spread(np.array([0, 1, 2, 49_151, 151_935]))
    assert noise.bits(0, 0, spread).tolist() == GOLDEN[0, 0]
    assert noise.bits(42, 1000, spread).tolist() == GOLDEN[42, 1000]
    assert noise.bits(2**64 - 1, 131_071, spread).tolist() == GOLDEN[2**64 - 1, 131_071]
    np.testing.assert_allclose(noise.gumbel(np.array([0, 1, 2**31, 2**32 - 1], np.uint32)), GOLDEN_NOISE, rtol=1e-12)


GOLDEN = {
    (0, 0): [1338545714, 103822218, 843311648, 1898795150, 4250541049],
    (42, 1000): [2276312592, 484456714, 4280183911, 3373511036, 2981168391],
    (2**64 - 1, 131071): [1987463001, 940292364, 338188287, 3603260848, 1863241016],
}
GOLDEN_NOISE = [-3.129994640884816, -3.0807737589468562, 0.366512920917568, 22.87385695841999]


def test_noise_grows_with_the_bits_between_its_stated_bounds() -> None:
    bits = np.array([0, 1, 2, 1000, 2**31, 2**32 - 3, 2**32 - 2, 2**32 - 1], np.uint32)
    values = noise.gumbel(bits)
    assert (np.diff(values) > 0).all()
    assert values[[0, -1]] == pytest.approx([-3.13, 22.87], abs=0.01)


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**31), st.lists(st.integers(0, 2**18), min_size=1, max_size=50))
def test_does_not_depend_on_what_is_asked_with_it(seed: int, position: int, ids: list[int]) -> None:
    together = gumbel(seed, position, np.array(ids))
    alone = [gumbel(seed, position, np.array([i]))[0] for i in ids]
    assert together.tolist() == alone
    assert (together == gumbel(seed + 2**64, position, np.array(ids))).all()  # seeds are taken modulo 2**64


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 100_000),
    st.integers(1, 3000),
    st.sampled_from([1e-4, 0.1, 1.0, 5.0, 20.0, 1000.0]),
    st.booleans(),
)
def test_pick_is_the_argmax_of_logits_plus_noise(seed: int, position: int, n: int, scale: float, holes: bool) -> None:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(n) * scale).astype(np.float32)
    if holes:
        logits[random.integers(0, n, n // 2)] = -np.inf
        logits[random.integers(n)] = 0.0
    ids = np.sort(random.choice(VOCABULARY, n, replace=False))
    expected = int((logits + gumbel(seed, position, ids)).argmax())
    assert noise.pick(seed, position, logits, noise.spread(ids)) == expected


def test_pick_takes_the_lower_index_on_a_tie() -> None:
    same = noise.spread(np.array([77, 77, 77]))
    assert noise.pick(0, 0, np.array([-1.0, 0.0, 0.0], np.float32), same) == 1


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_pick_draws_from_the_softmax(scale: float) -> None:
    logits = np.array([0.0, 1.0, -1.0, 0.5, -3.0, 2.0], np.float32) * np.float32(scale)
    spread = noise.spread(np.array([3, 99, 1000, 20_000, 20_001, 49_000]))
    n = 15_000
    counts = np.bincount([noise.pick(9, position, logits, spread) for position in range(n)], minlength=len(logits))
    expected = np.exp(logits - np.logaddexp.reduce(logits)) * n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 5 + 4 * math.sqrt(2 * 5)
