from __future__ import annotations

import pytest

from agent.client import Client, _lines, is_loopback_url
from shards.errors import ConfigurationError


def test_a_line_ends_with_a_line_feed_and_nothing_else() -> None:
    pieces = ["data: a\u2028b\x85c\u2029", "d\n\nda", "ta: e\n", "rest"]
    assert list(_lines(pieces)) == ["data: a\u2028b\x85c\u2029d", "", "data: e", "rest"]


@pytest.mark.parametrize(("url", "is_here"), [
    ("127.0.0.1", True), ("localhost:8114", True), ("http://[::1]:8114", True), ("::1", True),
    ("192.168.1.5", False), ("pc-2:8114", False), ("http://", False), ("two words", False),
])  # fmt: skip
def test_which_addresses_are_this_pc(url: str, is_here: bool) -> None:
    assert is_loopback_url(url) is is_here


def test_what_is_no_address_is_said() -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        Client("two words")
