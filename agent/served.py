"""What the API serves: a model on this PC alone, or on a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

    from agent.fleet.control.messages import Examined
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

    @property
    def retiring(self) -> tuple[Copy, ...]:
        """Chains that others have replaced, and that end with their last request."""
        ...


class FleetControl(Protocol):
    """A fleet, for those who look after it. The methods may be called from any thread."""

    def describe(self) -> dict[str, Any]:
        """Nodes, links, pending nodes, plan and events, as JSON data."""
        ...

    def name_of(self, node: str) -> str:
        """What the node with this key is called."""
        ...

    def approve(self, code: str) -> str:
        """Let the node with this short code in; returns its name. Raises RequestError."""
        ...

    def refuse(self, code: str) -> str:
        """Do not list the node with this short code any more; returns its name. Raises RequestError."""
        ...

    def forget(self, node: str) -> str:
        """Shut a node (a name, key or code) out; returns its name. Raises RequestError."""
        ...

    def renew_token(self) -> None:
        """Make the token worth nothing, and a new one. Raises ConfigurationError."""
        ...

    def plan(self, changes: dict[str, Any]) -> dict[str, Any]:
        """What would be planned now for the fleet's wish with these changes, as JSON data.

        Raises:
            CapacityError: it does not fit.
            RequestError: it is impossible.
            StageError: nothing is measured yet.
        """
        ...

    def apply(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Plan for the fleet's wish with these changes from now on, whatever that gains; returns the wish.

        Raises:
            CapacityError: as `plan`, and likewise the others; then nothing has changed.
        """
        ...

    def node(self, node: str) -> tuple[dict[str, Any], Future[Examined]]:
        """What is known of the node with this name or key, as JSON data, and what it finds when it looks at itself.

        The future's error is a StageError; it may be cancelled. Raises RequestError if there is no such node.
        """
        ...
