"""A line of waiting requests of one class: turns go to clients by the tokens they were given, then to short prompts."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import itemgetter

from pipeline.sequence import Sequence

_CLIENT_TOKENS = 100
"""Tokens given to a client that weigh as much as a level of priority, and so as 1 / `ageing` seconds of waiting."""

_PROMPT_TOKENS = 4096
"""Tokens of a prompt that do so; a prompt's rows are run many at a time."""

_FEW_CLIENTS = 16
"""So many are not worth looking through for those to forget."""

_Entry = tuple[float, int, Sequence]
"""(rank, order of arrival, request)."""

_Place = tuple[float, int]
"""(levels, turn): tokens and the time since which it waits; the smallest goes first."""


@dataclass(slots=True, eq=False)
class _Client:
    """What a client has waiting, and what it was given."""

    waiting: list[_Entry] = field(default_factory=list)
    """Best first."""
    tokens: float = 0.0
    """Its virtual token counter."""
    prepaid: float = 0.0
    """Those of them that were counted for a prompt whose rows have not been run yet."""
    seen: float = 0.0
    """When it was last given something."""
    since: float = 0.0
    """When it began to wait, or had a turn since."""
    turn: int = 0
    """The order of those times."""
    place: _Place | None = None
    """Where it stands in the line; None if it has nothing waiting."""


class FairLine:
    """Requests of one class, fair to their clients. Deterministic; `peek` looks at no more than it must move.

    Between clients it counts tokens (the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large
    Language Models", arXiv:2401.00588): of the clients that wait, the one that was given the fewest goes first. Rows
    count when they are run, so nobody need know how long an answer will be (deficit round robin would). A prompt
    counts when its request has its turn, so that places that come free together are shared as well. A client that
    comes (back) is lifted to the lowest count of those that wait: being away earns nothing. Rows that run while
    nobody waits do not count, for they are at nobody's cost.

    Waiting makes up for tokens, slowly. Otherwise an endless row of new clients, each of which begins at the lowest
    count, would keep one that was given more waiting for ever. Being away makes up for them as waiting does, so that
    every client is forgotten some time after it has left.

    Within a client requests go by priority, age and length of the prompt; age outgrows the others.

    Args:
        ageing: Priority levels that a second of waiting is worth.
    """

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        self._clients: dict[str, _Client] = {}
        self._entries: dict[Sequence, _Entry] = {}
        self._order: list[tuple[_Place, _Client]] = []
        """Those that wait, by the places they had when they were put there: counts only grow, so none goes forward."""
        self._floor = 0.0
        """Count of the client that waited last."""
        self._now = 0.0
        self._arrivals = self._turns = 0
        self._crowd = _FEW_CLIENTS
        """With more clients than this, those to forget are looked for."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence, now: float) -> None:
        """Put a request in line."""
        self._now = now
        request = sequence.request
        # Of two requests the one with the larger priority + ageing * (now - arrival) - length goes first. `now` is in
        # both, so the order never changes and can be kept sorted.
        rank = self._ageing * now - request.priority + sequence.unsent / _PROMPT_TOKENS
        client = self._clients.setdefault(request.client, _Client())
        if client.place is None:
            lowest = self._lowest()
            tokens = max(lowest, self._owed(client))
            # what is forgotten of the count is forgotten of what it holds, or rows that never ran would be a credit
            client.prepaid = max(0.0, client.prepaid - abs(tokens - client.tokens))
            client.tokens = tokens
            self._line_up(client)
            self._forget_some(lowest)
        entry = self._entries[sequence] = (rank, self._arrivals, sequence)
        insort(client.waiting, entry)
        self._arrivals += 1

    def peek(self) -> Sequence | None:
        """Whose turn it is; None if nobody waits."""
        while self._order:
            place, client = self._order[0]
            if place == self._place(client):
                return client.waiting[0][2]
            del self._order[0]
            self._stand(client)
        return None

    def pop(self, sequence: Sequence, now: float) -> None:
        """Give a request its turn; its `unsent` are the rows that its prompt will take."""
        self._now = now
        client = self._clients[sequence.request.client]
        self.remove(sequence)
        client.seen = now
        if self._entries:
            client.tokens += sequence.unsent
            client.prepaid += sequence.unsent
        if client.place is not None:
            self._leave(client, client.place)
            self._line_up(client)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out of the line, wherever it stands."""
        client = self._clients[sequence.request.client]
        del client.waiting[bisect_left(client.waiting, self._entries.pop(sequence))]
        if client.place is not None and not client.waiting:
            self._leave(client, client.place)
            self._floor = client.tokens

    def charge(self, name: str, tokens: int) -> None:
        """Count rows that are run for a client."""
        client = self._clients.get(name)
        if client is None:
            if not self._entries:
                return
            client = self._clients[name] = _Client(tokens=self._lowest())
        prepaid = min(tokens, client.prepaid)
        client.prepaid -= prepaid
        client.seen = self._now
        if self._entries:
            client.tokens += tokens - prepaid

    def _place(self, client: _Client) -> _Place:
        return client.tokens / _CLIENT_TOKENS + self._ageing * client.since, client.turn

    def _line_up(self, client: _Client) -> None:
        """It begins to wait."""
        client.since, client.turn = self._now, self._turns
        self._turns += 1
        self._stand(client)

    def _stand(self, client: _Client) -> None:
        client.place = self._place(client)
        insort(self._order, (client.place, client), key=itemgetter(0))

    def _leave(self, client: _Client, place: _Place) -> None:
        del self._order[bisect_left(self._order, place, key=itemgetter(0))]
        client.place = None

    def _lowest(self) -> float:
        return min((client.tokens for _, client in self._order), default=self._floor)

    def _owed(self, client: _Client) -> float:
        """What a client that has nothing waiting would begin with, were it alone."""
        return client.tokens - self._ageing * _CLIENT_TOKENS * (self._now - client.seen)

    def _forget_some(self, lowest: float) -> None:
        """Forget clients that would begin no differently if they were new, from time to time."""
        if len(self._clients) > self._crowd:
            for name, client in list(self._clients.items()):
                if client.place is None and self._owed(client) <= lowest:
                    del self._clients[name]
            self._crowd = 2 * len(self._clients) + _FEW_CLIENTS
