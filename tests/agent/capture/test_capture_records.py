"""What a recording's bytes say, and that nothing else is taken for one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capture.capture_file import Captured, CaptureWriter
from agent.capture.records import CaptureError, Decoder, End, Header, Record, Row, Text, encode
from pipeline.messages import Sampling
from shards.errors import CapacityError

HEADER = Header("model", "a" * 64, 100, 3)
SAMPLING = Sampling(temperature=0.7, seed=2**64 - 1, logit_bias={5: -3.0}, logprobs=2)


def recording(texts: int = 2, rows: int = 3) -> list[Record]:
    """Texts whose rows alternate."""
    made: list[Record] = [HEADER, *(Text(n, (7, 8 + n), SAMPLING) for n in range(texts))]
    for i in range(rows):
        for n in range(texts):
            read = 8 + n if i == 0 else 20 + i - 1
            made.append(Row(n, 2 + i, read, 20 + i, np.array([n, i, -0.5], np.float32)))
    return [*made, End(texts * rows, 1, 2, "it was enough")]


def decoded(data: bytes, size: int = 10**9) -> list[Record]:
    decoder = Decoder("test")
    return [record for at in range(0, len(data), size) for record in decoder.feed(data[at : at + size])]


def same(a: Record, b: Record) -> bool:
    if isinstance(a, Row) and isinstance(b, Row):
        nothing = np.zeros(0, np.float32)
        return np.array_equal(a.hidden, b.hidden) and replace(a, hidden=nothing).token == b.token
    return a == b


@given(st.integers(1, 200), st.integers(0, 4), st.integers(0, 5))
def test_records_come_back_however_the_bytes_are_cut(size: int, texts: int, rows: int) -> None:
    made = recording(texts, rows)
    read = decoded(b"".join(map(encode, made)), size)
    assert all(same(a, b) for a, b in zip(made, read, strict=True))


def row(**changes: Any) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        assert isinstance(records[3], Row)
        records[3] = replace(records[3], **changes)

    return change


def put(at: int, record: Record) -> Callable[[list[Record]], None]:
    return lambda records: records.insert(at, record)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (row(position=3), "does not follow"),
        (row(read=1), "does not follow"),
        (row(number=9), "does not follow"),
        (row(token=100), "token 100"),
        (row(hidden=np.zeros(2, np.float32)), "8 bytes instead of 12"),
        (row(hidden=np.array([0, np.inf, 0], np.float32)), "not finite"),
        (row(hidden=np.array([0, np.nan, 0], np.float32)), "not finite"),
        (put(2, Text(0, (1,), SAMPLING)), "twice"),
        (put(1, Text(5, (), SAMPLING)), "without tokens"),
        (put(1, Text(5, (1, 100), SAMPLING)), "token ids outside"),
        (put(1, Text(5, (1,), Sampling(temperature=-1.0))), "makes no sense"),
        (put(1, Text(5, (1,), Sampling(logit_bias={100: 1.0}))), "makes no sense"),
        (put(1, HEADER), "no known kind"),
        (put(9, HEADER), "no known kind"),
        (lambda records: records.append(HEADER), "after the end"),
    ],
)
def test_damage_is_named(change: Callable[[list[Record]], None], says: str) -> None:
    records = recording()
    change(records)
    with pytest.raises(CaptureError, match=says):
        decoded(b"".join(map(encode, records)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 a zip file",
        b"\xc1",
        msgpack.packb({"a": 1}),
        msgpack.packb(["other", 1]),
        b"\xdd" + b"\xff" * 4,
    ],
)
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CaptureError):
        Captured.read(tmp_path / "x")


def test_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(msgpack.packb(["edge-agent capture", 2, "from the future"]))
    with pytest.raises(CaptureError, match="version 2, this edge-agent reads 1"):
        Captured.read(tmp_path / "x")


def write(path: Path, records: list[Record]) -> None:
    with CaptureWriter(path, 1000) as writer:
        for record in records:
            if isinstance(record, End):
                assert not path.exists()
                writer.complete(record)
            else:
                writer.write(record)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.capture"
    write(path, recording())
    assert list(tmp_path.iterdir()) == [path]
    captured = Captured.read(path)
    assert (captured.header, captured.end, captured.rows) == (HEADER, End(6, 1, 2, "it was enough"), 6)
    assert [text.prompt for text in captured.texts] == [(7, 8), (7, 9)]
    assert captured.texts[1].sampling == SAMPLING
    assert captured.texts[1].tokens.tolist() == [20, 21, 22]
    assert captured.texts[1].hidden.tolist() == [[1, 0, -0.5], [1, 1, -0.5], [1, 2, -0.5]]


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_file_cut_short_is_not_complete(tmp_path: Path, cut: int) -> None:
    write(tmp_path / "x", recording())
    data = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(data[:-cut])
    with pytest.raises(CaptureError, match=r"not complete: \d rows are there, its end is not"):
        Captured.read(tmp_path / "x")


def test_rows_that_are_missing_are_missed(tmp_path: Path) -> None:
    records = recording()
    del records[-2]
    write(tmp_path / "x", records)
    with pytest.raises(CaptureError, match="5 rows are there, 6 were recorded"):
        Captured.read(tmp_path / "x")


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("mine", "utf-8")
    with pytest.raises(CaptureError, match="such a file already"):
        CaptureWriter(path, 1000)
    with pytest.raises(CaptureError, match="no folder"):
        CaptureWriter(tmp_path / "nowhere" / "x", 1000)
    with pytest.raises(CapacityError, match="too full"):
        CaptureWriter(tmp_path / "y", 10**15)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text("utf-8") == "mine"


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with CaptureWriter(path, 1000) as writer:
        writer.write(HEADER)
        path.write_text("mine", "utf-8")
        with pytest.raises(CaptureError, match="by now"):
            writer.complete(End(0, 0, 0, "done"))
    assert path.read_text("utf-8") == "mine"


def test_what_breaks_off_stays_partial_and_nothing_leaves_nothing(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path / "x", 1000):
        pass
    assert not any(tmp_path.iterdir())
    with CaptureWriter(tmp_path / "x", 1000) as writer:
        writer.write(HEADER)
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
    with pytest.raises(CaptureError, match="not complete"):
        Captured.read(tmp_path / "x.partial")


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        """As a buffered file: what could not be written is tried again when it is closed."""

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.write(b"")

    with pytest.raises(CapacityError, match="No space left"), CaptureWriter(tmp_path / "x", 1000) as writer:
        writer._file.close()
        monkeypatch.setattr(writer, "_file", FullDisk())
        writer.write(HEADER)
    assert not (tmp_path / "x").exists()
