from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.shares import Shares
from shards.store import Piece

PIECES = [Piece("weights", index, index * 4, index * 4 + 4) for index in range(8)]
A, B, C = (Source(name * 40, name, "10.0.0.1", 1) for name in "abc")


def test_each_piece_is_dealt_once_before_any_is_dealt_twice() -> None:
    shares = Shares(PIECES[:4])
    shares.add(A, PIECES)
    shares.add(B, PIECES)
    dealt = [shares.deal(source) for source in (A, B, A, B)]
    assert sorted(p for p in dealt if p) == PIECES[:4]
    assert shares.deal(A) == dealt[1]  # which B has not brought yet
    assert shares.deal(A) == dealt[3]
    assert shares.deal(A) is None
    shares.add(C, PIECES)
    assert shares.deal(C) == dealt[0]
    assert shares.deal(C) == dealt[2]
    assert shares.deal(C) is None  # two at most


def test_what_few_have_goes_first() -> None:
    shares = Shares(PIECES[:4])
    shares.add(B, PIECES[:2])
    shares.add(A, PIECES)
    assert [shares.deal(A), shares.deal(A)] == PIECES[2:4]
    assert shares.deal(B) == PIECES[0]


def test_what_a_source_lacks_goes_to_another() -> None:
    shares = Shares(PIECES[:1])
    shares.add(A, PIECES)
    assert shares.deal(A) == PIECES[0]
    shares.lacks(A, PIECES[0])
    assert shares.deal(A) is None
    shares.add(B, PIECES)
    assert shares.deal(B) == PIECES[0]


def test_nothing_is_dealt_to_one_that_has_not_said_what_it_has() -> None:
    assert Shares(PIECES).deal(A) is None


@given(data=st.data())
def test_whatever_sources_do_all_that_somebody_has_arrives(data: st.DataObject) -> None:
    sources = [A, B, C]
    has = {source: data.draw(st.sets(st.sampled_from(PIECES)), label=source.name) for source in sources}
    honest = data.draw(st.sampled_from(sources))
    shares = Shares(PIECES)
    fetching: dict[Source, list[Piece]] = {}
    steps = 0
    for source in sources:
        shares.add(source, has[source])
        fetching[source] = []
    while True:
        steps += 1
        assert steps < 1000
        for source in fetching:
            while piece := shares.deal(source):
                assert piece in has[source] and piece in shares.open and piece not in fetching[source]
                fetching[source].append(piece)
                if data.draw(st.booleans()):
                    break
        busy = [source for source in fetching if fetching[source]]
        if not busy:
            break
        source = data.draw(st.sampled_from(busy))
        piece = fetching[source].pop(0)
        event = "arrives" if source == honest else data.draw(st.sampled_from(["arrives", "wrong", "lacks", "vanishes"]))
        if event in ("arrives", "wrong"):
            for pieces in fetching.values():
                if piece in pieces:
                    pieces.remove(piece)
            shares.arrived(piece)
        if event == "wrong":
            shares.reopen(piece)
        if event == "lacks":
            shares.lacks(source, piece)
            has[source].discard(piece)
        if event in ("wrong", "vanishes"):
            shares.drop(source)
            del fetching[source]
    assert not set(shares.open) & has[honest]
