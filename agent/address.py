"""Where a head listens. Apart from the server, which takes long to import."""

from __future__ import annotations

from shards.errors import ConfigurationError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8114
DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_CONTROL_PORT = 8115
"""Where a head's nodes connect; its door is the next one."""


def url_at(host: str, port: int) -> str:
    """The URL of an HTTP server at an address, IPv6 or not."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def control_address(text: str) -> tuple[str, int]:
    """Host and control port of `HOST`, `HOST:PORT`, `[IPv6]:PORT` or an IPv6 address.

    Raises:
        ConfigurationError: it is nothing of the kind.
    """
    host, colon, port = text.strip().rpartition(":")
    if text.count(":") > 1 and not (host.startswith("[") and host.endswith("]")):
        host, colon = text.strip(), ""
    elif not colon:
        host = port
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    number = int(port) if colon and port.isascii() and port.isdecimal() else None if colon else DEFAULT_CONTROL_PORT
    # the door is the port after it
    if not host or set(host) & set("[]") or number is None or not 0 < number < 65535:
        raise ConfigurationError(
            f"{text!r} is not an address",
            where="--head",
            hint=f"Write it as HOST or HOST:PORT, like 192.168.1.20:{DEFAULT_CONTROL_PORT}",
        )
    return host, number
