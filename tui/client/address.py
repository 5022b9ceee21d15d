"""Addresses of heads, as people type them. Pure."""

from __future__ import annotations

from ipaddress import ip_address

import httpx

from shards.errors import ConfigurationError


def complete(text: str, usual: str) -> str:
    """The URL that an address stands for: `pc-2`, `192.168.1.5:8114`, `http://pc-2:8114/v1`.

    Args:
        text: What was typed.
        usual: A URL whose port is taken where none was typed.

    Raises:
        ConfigurationError: it is no address.
    """
    typed = text.strip()
    if typed.count(":") > 1 and "://" not in typed and not typed.startswith("["):
        typed = f"[{typed}]"  # a bare IPv6 address
    try:
        url = httpx.URL(typed if "://" in typed else f"http://{typed}")
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"this is not an address ({error})", where=text.strip()) from None
    if url.scheme not in ("http", "https") or not url.host or any(character.isspace() for character in typed):
        raise ConfigurationError("this is not an address", where=text.strip(), hint="Write it as pc-2:8114.")
    if url.port is not None and not 0 < url.port < 2**16:
        raise ConfigurationError("there is no such port", where=text.strip(), hint="Ports go from 1 to 65535.")
    port = url.port or (httpx.URL(usual).port if usual and "://" not in typed else None)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}" + (f":{port}" if port else "")


def short(url: str) -> str:
    """Host and port."""
    return url.partition("://")[2] or url


def is_here(url: str) -> bool:
    """Whether a URL leads to this PC itself."""
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ip_address(host).is_loopback
    except (httpx.InvalidURL, ValueError):
        return False
