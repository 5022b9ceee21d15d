from __future__ import annotations

import pytest

from agent.address import DEFAULT_CONTROL_PORT, control_address
from shards.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("pc", ("pc", DEFAULT_CONTROL_PORT)),
        (" 192.0.2.1:9 ", ("192.0.2.1", 9)),
        ("study-pc.local", ("study-pc.local", DEFAULT_CONTROL_PORT)),
        ("fe80::1", ("fe80::1", DEFAULT_CONTROL_PORT)),
        ("fe80::1%eth0", ("fe80::1%eth0", DEFAULT_CONTROL_PORT)),
        ("[fe80::1]", ("fe80::1", DEFAULT_CONTROL_PORT)),
        ("[fe80::1]:8200", ("fe80::1", 8200)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert control_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":", "pc:", ":8115", "pc:0", "pc:65535", "pc:x", "pc:-1", "pc:²", "[::1", "[::1]8115", "[pc", "pc]:9", "[]"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        control_address(text)
