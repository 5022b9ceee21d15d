"""The head that this user runs on this PC: where it answers, and who may hear this user's key."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import httpx

from agent import paths
from agent.address import DEFAULT_URL
from agent.client import is_loopback_url
from agent.fleet.discovery.interfaces import own_addresses
from agent.fleet.head.one_head import running_head
from agent.keys import found_key, read_key
from shards.errors import ConfigurationError
from tui.client.address import complete


def own_url() -> str:
    """Where this user's head answers, whatever its port; the usual place if none is known to run."""
    with suppress(ConfigurationError):  # a note that is not the user's own alone is nobody's
        if (head := running_head(paths.config_folder())) is not None and head.url:
            return head.url
    return DEFAULT_URL


def key_for(url: str, file: Path | None) -> str | None:
    """The API key to send to a URL: the one that is given, or this user's own, which does not leave this PC.

    Raises:
        ConfigurationError: the key's file cannot be read, or others can read it; or this is no address.
    """
    if file is not None:
        return read_key(file)
    is_here = is_loopback_url(url) or httpx.URL(complete(url, DEFAULT_URL)).host in own_addresses()
    return found_key() if is_here else None
