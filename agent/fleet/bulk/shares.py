"""Which source fetches which piece: pure bookkeeping, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent.fleet.bulk.bulk_client import Source
from shards.store import Piece


class Shares:
    """Deals pieces to sources as they ask, and deals again what a source did not bring.

    Pieces that few sources have go first, the others can be had anywhere. When nothing is left to begin, a piece that
    one other source is still fetching is dealt a second time, so that the slowest source does not decide the end.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._open: dict[Piece, set[Source]] = {piece: set() for piece in pieces}
        """Pieces that are not here, and who is fetching them."""
        self._has: dict[Source, set[Piece]] = {}

    def add(self, source: Source, has: Iterable[Piece]) -> None:
        """A source says what it has."""
        self._has[source] = set(has)
        holders = {piece: sum(piece in held for held in self._has.values()) for piece in self._open}
        self._open = dict(sorted(self._open.items(), key=lambda item: holders[item[0]]))

    def deal(self, source: Source) -> Piece | None:
        """The next piece for a source; None: nothing is left that it could bring."""
        has = self._has.get(source, ())
        second = None
        for piece, fetching in self._open.items():
            if piece in has and source not in fetching:
                if not fetching:
                    fetching.add(source)
                    return piece
                if len(fetching) == 1:
                    second = second or piece
        if second is not None:
            self._open[second].add(source)
        return second

    def lacks(self, source: Source, piece: Piece) -> None:
        """A source does not have a piece after all."""
        self._has[source].discard(piece)
        self._open.get(piece, set()).discard(source)

    def drop(self, source: Source) -> None:
        """A source is asked no more."""
        self._has.pop(source, None)
        for fetching in self._open.values():
            fetching.discard(source)

    def arrived(self, piece: Piece) -> None:
        """A piece is here, and nobody else need bring it."""
        del self._open[piece]

    def reopen(self, piece: Piece) -> None:
        """What arrived was not the piece."""
        self._open[piece] = set()

    @property
    def open(self) -> Collection[Piece]:
        """Pieces that are not here."""
        return self._open.keys()
