"""The waiting queue: two classes, in each of them fair to clients."""

from __future__ import annotations

from pipeline.fair_line import FairLine
from pipeline.messages import Service
from pipeline.sequence import Sequence

BATCH_PATIENCE_SECONDS = 30.0
"""How long batch requests give way to interactive ones: then one of them goes first."""


class AdmissionQueue:
    """Requests waiting for room; deterministic.

    Interactive requests go first. Nobody starves: when no batch request has had a turn for
    `BATCH_PATIENCE_SECONDS`, the next turn is one's. Who is next of a class is said at `FairLine`.

    Args:
        ageing: Priority levels that a second of waiting is worth.
    """

    def __init__(self, ageing: float) -> None:
        self._lines: dict[Service, FairLine] = {"interactive": FairLine(ageing), "batch": FairLine(ageing)}
        self._batch_since = 0.0
        """When batch requests began to wait, or one of them had a turn since."""

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    @property
    def has_interactive(self) -> bool:
        """Whether an interactive request waits."""
        return len(self._lines["interactive"]) > 0

    def add(self, sequence: Sequence, now: float) -> None:
        """Put a request in line."""
        service = sequence.request.service
        if service == "batch" and not self._lines[service]:
            self._batch_since = now
        self._lines[service].add(sequence, now)

    def peek(self, now: float) -> Sequence | None:
        """Whose turn it is; None if nobody waits."""
        first: tuple[Service, Service] = ("interactive", "batch")
        if now - self._batch_since >= BATCH_PATIENCE_SECONDS:
            first = ("batch", "interactive")
        return self._lines[first[0]].peek() or self._lines[first[1]].peek()

    def pop(self, sequence: Sequence, now: float) -> None:
        """Give a request (the one `peek` named) its turn; its `unsent` are the rows that its prompt will take."""
        service = sequence.request.service
        if service == "batch":
            self._batch_since = now
        self._lines[service].pop(sequence, now)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out of the line, wherever it stands."""
        self._lines[sequence.request.service].remove(sequence)

    def charge(self, client: str, tokens: int, service: Service = "interactive") -> None:
        """Count rows that are run for a client: those of a class count among the clients that wait in that class."""
        self._lines[service].charge(client, tokens)
