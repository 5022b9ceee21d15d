"""The one error hierarchy. Every error a user can meet says what happened, where, and what to do next."""

from __future__ import annotations


class EdgeAgentError(Exception):
    """Base of every error that is ours to explain.

    Args:
        what: What happened, as a sentence without a full stop.
        where: The file, node, stage or field it happened to.
        hint: What the reader can do next.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.hint}" if self.hint else text


class PackageError(EdgeAgentError):
    """A model package is missing, of another format, incomplete, or its bytes are not what the manifest says."""


class GraphError(EdgeAgentError):
    """A graph cannot be read, or cannot be cut into stages."""


class ExportError(EdgeAgentError):
    """A source cannot be exported, or the export did not pass its own verification."""


class DownloadError(EdgeAgentError):
    """A model could not be fetched, or what arrived has the wrong checksum."""


class StageError(EdgeAgentError):
    """A stage failed to load, failed in a step, or its process ended."""


class CapacityError(EdgeAgentError):
    """Something does not fit: KV cache, memory or disk. Names the size wanted and the size there is."""


class OverloadedError(CapacityError):
    """So many requests are at work or waiting that this one is refused; later there is a place again.

    Args:
        what: What happened, naming how many there are and how many there may be.
        where: What is full.
        hint: What the reader can do next.
        retry_seconds: When a place is likely to be free.
    """

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, retry_seconds: float = 1.0
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.retry_seconds = retry_seconds


class WireError(EdgeAgentError):
    """A frame is not what the protocol or the plan allows; it was dropped before its payload was touched."""


class RequestError(EdgeAgentError):
    """A request asks for something impossible. `where` names the field; the API answers 400."""


class ConfigurationError(EdgeAgentError):
    """A flag or a combination of flags makes no sense."""
