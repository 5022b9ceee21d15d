"""What the API serves: a model on this PC alone, or on a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agent.service import Head
    from pipeline.running import Copy
    from pipeline.tokenizer import Tokenizer
    from shards.manifest import Manifest


class Served(Protocol):
    """A model that answers."""

    @property
    def manifest(self) -> Manifest:
        """Of its package."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Of its package."""
        ...

    @property
    def head(self) -> Head:
        """Takes requests."""
        ...

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The chains at work now; none while a fleet is being put together."""
        ...


class FleetControl(Protocol):
    """A fleet, for those who look after it. The methods may be called from any thread."""

    def describe(self) -> dict[str, Any]:
        """Nodes, links, pending nodes, plan and events, as JSON data."""
        ...

    def approve(self, code: str) -> str:
        """Let the node with this short code in; returns its name. Raises RequestError."""
        ...

    def forget(self, node: str) -> str:
        """Shut a node (a name, key or code) out; returns its name. Raises RequestError."""
        ...

    def renew_token(self) -> None:
        """Make the token worth nothing, and a new one. Raises ConfigurationError."""
        ...

    def plan(self, changes: dict[str, Any]) -> dict[str, Any]:
        """What would be planned now for the fleet's wish with these changes, as JSON data. Raises EdgeAgentError."""
        ...
