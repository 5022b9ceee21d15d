"""What a recording takes, and what it counts as dropped instead: it never waits."""

from __future__ import annotations

import numpy as np
import pytest

from agent.capture import recording as recording_module
from agent.capture.recording import Listener, Recording
from agent.capture.records import Decoder, End, Header, Record, Row, Text
from pipeline.messages import Finished, Request, RequestEvent, Sampling, Token, TokenEvent, Usage

HEADER = Header("model", "a" * 64, 1000, 8)
MEGABYTE = 10**6


def request(name: str = "a", prompt: tuple[int, ...] = (5, 6, 7)) -> Request:
    return Request(name, prompt, Sampling(temperature=0.0), 100)


def token(position: int, value: float | None = 1.0) -> TokenEvent:
    hidden = None if value is None else np.full(8, value, np.float32)
    return TokenEvent("a", Token(1, position, 100 + position, hidden=hidden))


def listening(recording: Recording, asked: Request | None = None) -> tuple[Listener, list[RequestEvent]]:
    heard: list[RequestEvent] = []
    return recording.listener(asked or request(), heard.append), heard


def taken(recording: Recording) -> list[Record]:
    return list(Decoder("test").feed(recording.take() + recording.end()))


def test_it_records_texts_in_their_order_and_passes_everything_on() -> None:
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=60)
    listen, heard = listening(recording)
    events = [token(3), token(4), Finished("a", "stop", Usage(3, 0, 2))]
    for event in events:
        listen(event)
    assert heard == events
    header, text, *rows, end = taken(recording)
    assert (header, text) == (HEADER, Text(0, (5, 6, 7), Sampling(temperature=0.0)))
    assert [(r.position, r.read, r.token) for r in rows if isinstance(r, Row)] == [(3, 7, 103), (4, 103, 104)]
    assert end == End(2, 0, 0, "it was stopped")


def test_tokens_before_the_first_hidden_state_belong_to_the_prompt() -> None:
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=60)
    listen, _ = listening(recording)
    for event in (token(3, None), token(4, None), token(5)):
        listen(event)
    _, text, row, end = taken(recording)
    assert isinstance(text, Text)
    assert isinstance(row, Row)
    assert text.prompt == (5, 6, 7, 103, 104)
    assert (row.position, row.read, row.token) == (5, 104, 105)
    assert end == End(1, 0, 0, "it was stopped")


def test_a_gap_ends_the_text_and_what_follows_is_counted() -> None:
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=60)
    listen, heard = listening(recording)
    for event in (token(3), token(4, None), token(5), token(6)):
        listen(event)
    assert len(heard) == 4
    *_, end = taken(recording)
    assert end == End(1, 3, 0, "it was stopped")


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_state_that_is_not_finite_ends_the_text(value: float) -> None:
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=60)
    listen, _ = listening(recording)
    other, _ = listening(recording, request("b", (1, 2)))
    for event in (token(3), token(4, value), token(5)):
        listen(event)
    other(token(2))
    records = taken(recording)
    assert [(r.number, r.position) for r in records if isinstance(r, Row)] == [(0, 3), (1, 2)]
    assert records[-1] == End(2, 0, 2, "it was stopped")


def test_a_buffer_that_nobody_empties_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MAX_WAITING", 1000)
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=60)
    listen, heard = listening(recording)
    for position in range(3, 53):
        listen(token(position))
    assert len(heard) == 50
    sent = recording.take()
    assert len(sent) < 1500
    listen(token(53))  # there is room again, but not for a text with a gap
    other, _ = listening(recording, request("b", (1, 2)))
    other(token(2))
    *records, end = Decoder("test").feed(sent + recording.end())
    rows = [(r.number, r.position) for r in records if isinstance(r, Row)]
    kept = len(rows) - 1
    assert rows == [*((0, position) for position in range(3, 3 + kept)), (1, 2)]
    assert 0 < kept < 20
    assert end == End(kept + 1, 51 - kept, 0, "it was stopped")


def test_it_stays_within_its_bytes() -> None:
    recording = Recording(HEADER, max_bytes=5000, seconds=60)
    listen, _ = listening(recording)
    for position in range(3, 203):
        listen(token(position))
    assert recording.over == "it is full"
    data = recording.take() + recording.end()
    assert 2500 < len(data) <= 5000
    *_, end = Decoder("test").feed(data)
    assert isinstance(end, End)
    assert end.why == "it is full"
    assert end.rows > 20


def test_it_ends_with_its_time() -> None:
    recording = Recording(HEADER, max_bytes=MEGABYTE, seconds=0)
    listen, heard = listening(recording)
    listen(token(3))
    assert len(heard) == 1
    header, end = taken(recording)
    assert header == HEADER
    assert end == End(0, 0, 0, "the time is over")
