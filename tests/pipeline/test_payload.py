from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline import payload

SHAPES = st.tuples(st.integers(0, 5), st.integers(1, 40))


def finite(width: float) -> st.SearchStrategy[float]:
    return st.floats(-width, width, width=32)


def round_trip(kind: payload.PayloadKind, x: np.ndarray) -> np.ndarray:
    data = bytes(payload.encode(kind, x))
    hidden_size = x.shape[-1] if x.ndim == 2 else 1
    assert len(data) == payload.size(kind, len(x), hidden_size)
    back = payload.decode(kind, data, len(x), hidden_size)
    assert back.shape == payload.shape(kind, len(x), hidden_size)
    return back


@given(arrays(np.float32, SHAPES, elements=st.floats(width=32)))
def test_f32_is_exact_for_every_bit_pattern(x: np.ndarray) -> None:
    back = round_trip("f32", x)
    assert back.dtype == np.float32
    assert back.tobytes() == x.tobytes()


@given(arrays(np.int32, st.integers(0, 50)))
def test_tokens_are_exact(x: np.ndarray) -> None:
    back = round_trip("tokens", x)
    assert back.dtype == np.int32
    assert (back == x).all()


@given(arrays(np.float32, SHAPES, elements=finite(2.0**100)))
def test_f16_error_is_bounded_by_its_row(x: np.ndarray) -> None:
    back = round_trip("f16", x)
    assert back.dtype == np.float32
    largest = np.abs(x).max(axis=1, keepdims=True, initial=0)
    # 11 significant bits, down to 2^-28 of the row's largest value; below it the spacing of subnormal f16
    bound = np.maximum(np.abs(x) * 2.0**-11, np.maximum(largest, 2.0**-101).astype(np.float64) * 2.0**-39)
    assert (np.abs(back.astype(np.float64) - x) <= bound).all()


@given(arrays(np.float32, SHAPES, elements=finite(2.0**127) | st.sampled_from([np.inf, -np.inf])))
def test_f16_keeps_infinities_and_only_those(x: np.ndarray) -> None:
    back = round_trip("f16", x)
    assert (np.isinf(back) == np.isinf(x)).all()
    assert (back[np.isinf(x)] == x[np.isinf(x)]).all()


def test_f16_carries_residuals_beyond_its_own_range() -> None:
    x = np.array([[4.27e6, -1.5, 0.05], [3.0, 2.0, 1.0], [0.0, 0.0, -0.0], [1e-30, 0.0, -1e-30]], np.float32)
    back = round_trip("f16", x)
    np.testing.assert_allclose(back[0], x[0], rtol=2**-11)
    assert (back[1:3] == x[1:3]).all()
    np.testing.assert_allclose(back[3], x[3], rtol=2**-11)


def test_f16_rows_do_not_see_one_another() -> None:
    small = np.array([[1e-5, 2e-5]], np.float32)
    both = np.concatenate([small, np.array([[1e6, -1e6]], np.float32)])
    assert (round_trip("f16", both)[:1] == round_trip("f16", small)).all()


def test_f16_keeps_what_is_not_finite_without_harm_to_the_rest() -> None:
    x = np.array([[np.nan, 1.0, -2.0], [np.inf, 3.0, -np.inf], [np.nan, np.nan, np.nan]], np.float32)
    back = round_trip("f16", x)
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("kind", ["f32", "tokens"])
def test_decoding_makes_no_copy(kind: payload.PayloadKind) -> None:
    data = bytes(payload.encode(kind, np.ones(4, np.int32) if kind == "tokens" else np.ones((4, 1), np.float32)))
    back = payload.decode(kind, data, 4, 1)
    assert not back.flags.writeable
    assert np.shares_memory(back, np.frombuffer(data, np.uint8))


def test_encoding_f32_makes_no_copy_and_takes_views() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.shares_memory(np.frombuffer(payload.encode("f32", x), np.uint8), x)
    assert (round_trip("f32", x[:, ::2]) == x[:, ::2]).all()
