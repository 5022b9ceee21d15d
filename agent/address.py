"""Where a head listens. Apart from the server, which takes long to import."""

from __future__ import annotations

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8114
DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_CONTROL_PORT = 8115
"""Where a head's nodes connect; its door is the next one."""


def url_at(host: str, port: int) -> str:
    """The URL of an HTTP server at an address, IPv6 or not."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
