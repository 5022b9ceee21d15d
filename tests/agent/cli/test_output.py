from __future__ import annotations

import pytest

from agent.cli.output import parse_bytes
from shards.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "size"), [("8GB", 8 * 10**9), (" 7.5 GiB ", 15 * 2**29), ("500m", 5 * 10**8), ("1", 1)]
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "what"), [("lots", "not a size"), ("-1GB", "not a size"), ("0", "no memory"), ("0.1B", "no memory")]
)
def test_what_is_no_size_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        parse_bytes(text)
