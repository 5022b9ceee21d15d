"""What a request may ask of the sampler."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from single_rows import draw

from pipeline.messages import Sampling
from pipeline.sampling_checks import validate
from shards.errors import RequestError

GOOD = [
    Sampling(),
    Sampling(0.0, 0, 1.0, 0.0, 1.0, -2.0, 2.0, {0: -100.0, 9: 100.0}, 20, -5),
    Sampling(100.0, 2**31 - 1, 1e-9, 1.0, 100.0, 2.0, -2.0, {}, 0, 2**64 - 1),
]


@pytest.mark.parametrize("sampling", GOOD, ids=str)
def test_sampling_in_range_is_accepted(sampling: Sampling) -> None:
    validate(sampling, 10)
    assert 0 <= draw(sampling, np.zeros(10, np.float32), 1, (3,), 1).token < 10


BAD: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "at least 0 and at most 100"),
    ("temperature", 101.0, "at least 0 and at most 100"),
    ("temperature", math.nan, "at least 0 and at most 100"),
    ("temperature", math.inf, "at least 0 and at most 100"),
    ("top_k", -1, "at least 0 and at most 2147483647"),
    ("top_k", 10**400, "at least 0 and at most 2147483647"),
    ("top_p", 0.0, "above 0 and at most 1"),
    ("top_p", 1.01, "above 0 and at most 1"),
    ("top_p", math.nan, "above 0 and at most 1"),
    ("min_p", -0.01, "at least 0 and at most 1"),
    ("min_p", 1.01, "at least 0 and at most 1"),
    ("repetition_penalty", 0.0, "at least 0.01 and at most 100"),
    ("repetition_penalty", math.inf, "at least 0.01 and at most 100"),
    ("presence_penalty", -2.01, "at least -2 and at most 2"),
    ("frequency_penalty", 2.01, "at least -2 and at most 2"),
    ("seed", 2**64, "at least -9223372036854775808 and at most 18446744073709551615"),
    ("logprobs", -1, "at least 0 and at most 20"),
    ("logprobs", 21, "at least 0 and at most 20"),
]


@pytest.mark.parametrize(("field", "value", "bounds"), BAD)
def test_sampling_out_of_range_names_field_value_and_bounds(field: str, value: Any, bounds: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate(replace(Sampling(), **{field: value}), 10)
    assert caught.value.where == field
    assert str(value) in str(caught.value)
    assert bounds in str(caught.value)


@pytest.mark.parametrize(
    ("bias", "what"),
    [
        ({10: 1.0}, "token id 10 does not exist: this model has ids 0 to 9"),
        ({-1: 1.0}, "token id -1 does not exist"),
        ({3: 101.0}, "at least -100 and at most 100"),
        ({3: math.nan}, "at least -100 and at most 100"),
        (dict.fromkeys(range(1025), 1.0), "1025 entries are given, at most 1024"),
    ],
)
def test_logit_bias_is_checked(bias: dict[int, float], what: str) -> None:
    with pytest.raises(RequestError, match=what) as caught:
        validate(Sampling(logit_bias=bias), 10)
    assert caught.value.where is not None
    assert caught.value.where.startswith("logit_bias")
