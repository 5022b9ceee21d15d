"""What can go wrong between screen and head."""

from __future__ import annotations

from shards.errors import EdgeAgentError


class HeadError(EdgeAgentError):
    """The head could not do what it was asked; the message is its own."""


class HeadGoneError(HeadError):
    """Nobody answers, or the answer broke off."""


class KeyWantedError(HeadError):
    """The head wants an API key, or another one."""


class RefusedError(HeadError):
    """The head refuses the request: something in it is impossible, or not there (4xx)."""
