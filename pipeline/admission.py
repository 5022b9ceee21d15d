"""The waiting queue: priorities that age, and turns between clients."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import itemgetter

from pipeline.sequence import Sequence


@dataclass(slots=True)
class _Client:
    """What one client has waiting, best first."""

    entries: list[tuple[float, int, float, Sequence]] = field(default_factory=list)
    """(rank, order of arrival, time of arrival, sequence), ascending."""
    served: float = float("-inf")
    turn: int = -1


class AdmissionQueue:
    """Requests waiting for room; deterministic, first come first served among equals.

    A client's requests are ordered by priority and age. Between clients the best score goes first: the priority of
    the client's first request, plus `ageing` for every second **the client** has waited, that is since the request
    came or the client last had a turn. So fifty requests of one client count as one, equal clients take turns, and
    nobody starves: every wait outgrows any priority in the end.

    Args:
        ageing: Priority levels that a second of waiting is worth.
    """

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        self._clients: dict[str, _Client] = {}
        self._arrivals = 0
        self._turns = 0

    def __len__(self) -> int:
        return sum(len(client.entries) for client in self._clients.values())

    def add(self, sequence: Sequence, now: float) -> None:
        """Put a request in line."""
        request = sequence.request
        # Of two waiting requests the one with the larger priority + ageing * (now - arrival) goes first; `now`
        # cancels out, so the order within a client never changes and can be kept sorted.
        rank = self._ageing * now - request.priority
        client = self._clients.setdefault(request.client, _Client())
        insort(client.entries, (rank, self._arrivals, now, sequence), key=itemgetter(0, 1))
        self._arrivals += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a request out of the line, wherever it stands."""
        name = sequence.request.client
        client = self._clients[name]
        client.entries = [entry for entry in client.entries if entry[3] is not sequence]
        if not client.entries:
            del self._clients[name]

    def peek(self, now: float) -> Sequence | None:
        """Whose turn it is; None if nobody waits."""
        if not self._clients:
            return None
        return min(self._clients.values(), key=lambda client: self._place(client, now)).entries[0][3]

    def pop(self, sequence: Sequence, now: float) -> None:
        """Give a request (the one `peek` named) its turn."""
        client = self._clients[sequence.request.client]
        client.served, client.turn = now, self._turns
        self._turns += 1
        self.remove(sequence)

    def _place(self, client: _Client, now: float) -> tuple[float, int, int]:
        """The smallest goes first: by score, then the client whose turn is longest ago, then by arrival."""
        _, order, arrival, sequence = client.entries[0]
        waited = now - max(arrival, client.served)
        return -(sequence.request.priority + self._ageing * waited), client.turn, order
