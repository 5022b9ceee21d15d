from __future__ import annotations

import codecs
import os
import re
from pathlib import Path

import pytest
from chat_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from tui.chat.attachment import MAX_BYTES, Attachment, decode, fenced, read_attachment, with_attachments
from tui.chat.errors import AttachmentError

_FENCE = re.compile(r"\n(`{3,})[^\n`]*\n(.*)\1", re.DOTALL)


def wrote(folder: Path, data: bytes, name: str = "notes.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "text", "note"),
    [
        ("grün €\n".encode(), "grün €\n", ""),
        ("grün €".encode("utf-8-sig"), "grün €", ""),
        (codecs.BOM_UTF16_LE + "grün 😀".encode("utf-16-le"), "grün 😀", ""),
        (codecs.BOM_UTF16_BE + "grün 😀".encode("utf-16-be"), "grün 😀", ""),
        ("grün €".encode("cp1252"), "grün €", "not UTF-8, read as Windows-1252"),
        (b"one\r\ntwo\rthree\n", "one\ntwo\nthree\n", ""),
        (b"", "", ""),
        (b"\x1b[31mred\x1b[0m\x0c log", "\x1b[31mred\x1b[0m\x0c log", ""),
    ],
)
def test_text_files_are_read_whatever_their_encoding(tmp_path: Path, data: bytes, text: str, note: str) -> None:
    attachment = read_attachment(wrote(tmp_path, data))
    assert (attachment.name, attachment.text, attachment.note) == ("notes.txt", text, note)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\x81\x8d\x8f\x90\x9d",
        "text without a mark".encode("utf-16-le"),
        codecs.BOM_UTF16_LE + b"odd",
        codecs.BOM_UTF32_LE + "text".encode("utf-32-le"),
        bytes(range(1, 256)) * 8,
    ],
)
def test_what_is_not_a_text_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(AttachmentError, match=r"photo\.bin: this is not a text file"):
        read_attachment(wrote(tmp_path, data, "photo.bin"))


def test_a_large_file_is_refused_with_both_numbers(tmp_path: Path) -> None:
    assert len(read_attachment(wrote(tmp_path, b"x" * MAX_BYTES)).text) == MAX_BYTES
    with pytest.raises(AttachmentError, match="1,048,581 bytes, and at most 1,048,576"):
        read_attachment(wrote(tmp_path, b"x" * (MAX_BYTES + 5)))


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AttachmentError, match="this is a folder"):
        read_attachment(tmp_path)
    with pytest.raises(AttachmentError, match=r"missing\.txt: there is no such file"):
        read_attachment(tmp_path / "missing.txt")
    with pytest.raises(AttachmentError, match="cannot be read"):
        read_attachment(Path("a\0b"))
    with pytest.raises(AttachmentError, match="this is not a file"):
        read_attachment(Path(os.devnull))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_text_or_refused(data: bytes) -> None:
    try:
        text, _ = decode(data, "file")
    except AttachmentError as error:
        assert "not a text file" in str(error)
    else:
        assert "\0" not in text and "\r" not in text


@given(ANY_TEXT, ANY_TEXT)
def test_nothing_in_a_file_closes_its_fence(name: str, text: str) -> None:
    attachment = Attachment(name=name, text=text)
    found = _FENCE.search(fenced(attachment)[len("File: ") + len(attachment.name) :])
    assert found is not None
    assert found[1] not in found[2]
    assert found[2] in (attachment.text, attachment.text + "\n")


def test_files_stand_behind_the_question_with_their_names() -> None:
    files = [Attachment(name="a.py", text="x = '```'\n"), Attachment(name="Makefile", text="all:")]
    assert with_attachments("What is this?", files) == (
        "What is this?\n\nFile: a.py\n````py\nx = '```'\n````\n\nFile: Makefile\n```\nall:\n```"
    )
    assert with_attachments("", files[1:]) == "File: Makefile\n```\nall:\n```"
    assert with_attachments("only", []) == "only"
