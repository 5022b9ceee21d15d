"""Addresses as people type them."""

from __future__ import annotations

import pytest

from shards.errors import ConfigurationError
from tui.client.address import complete, is_here, short

USUAL = "http://127.0.0.1:8114"


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("pc-2", "http://pc-2:8114"),
        (" pc-2:9000 ", "http://pc-2:9000"),
        ("192.168.1.5", "http://192.168.1.5:8114"),
        ("http://pc-2", "http://pc-2"),
        ("https://pc-2/v1/", "https://pc-2"),
        ("http://pc-2:8114/v1", "http://pc-2:8114"),
        ("::1", "http://[::1]:8114"),
        ("[fe80::1]:9000", "http://[fe80::1]:9000"),
    ],
)
def test_complete(typed: str, url: str) -> None:
    assert complete(typed, USUAL) == url


@pytest.mark.parametrize(
    "typed", ["", "  ", "http://", "ftp://pc-2", "a b", "pc-2:port", "http://pc 2/", "pc-2:99999", "pc-2:0"]
)
def test_what_is_no_address(typed: str) -> None:
    with pytest.raises(ConfigurationError):
        complete(typed, USUAL)


def test_is_here() -> None:
    assert is_here("http://127.0.0.1:8114") and is_here("http://localhost") and is_here("http://[::1]:1")
    assert not is_here("http://192.168.1.5:8114")
    assert not is_here("http://127.0.0.1.example.org")
    assert not is_here("not a url://")


def test_short() -> None:
    assert short("http://pc-2:8114") == "pc-2:8114"
