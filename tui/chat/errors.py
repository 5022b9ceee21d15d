"""What can go wrong with the files of the chat."""

from __future__ import annotations

from shards.errors import EdgeAgentError


class ConversationFileError(EdgeAgentError):
    """A conversation could not be read, written or exported."""


class AttachmentError(EdgeAgentError):
    """A file cannot be attached: not there, not a text, or too large."""
