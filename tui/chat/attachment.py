"""Text files that go along with a question."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tui.chat.errors import AttachmentError
from tui.chat.text import MendedText
from tui.client.plain import one_line

MAX_BYTES = 1 << 20
"""Far more than the contexts of models that run on such PCs hold."""
_CONTROLS = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f]")
_MAX_CONTROLS = 0.02
"""Part of the characters; some logs have a few, files that aren't texts have many."""


class Attachment(BaseModel):
    """A text file as it was when it was attached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: MendedText
    text: MendedText
    note: str = ""
    """What a reader should know of how it was read, e.g. "read as Windows-1252"; else empty."""


def read_attachment(path: Path) -> Attachment:
    """Read a text file. Blocks: call it in a thread.

    Raises:
        AttachmentError: It is not there, not a text, or too large.
    """
    where = one_line(str(path))
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            what = "this is a folder" if path.is_dir() else "this is not a file"
            raise AttachmentError(what, where=where, hint="Choose a text file.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
            size = path.stat().st_size if len(data) > MAX_BYTES else len(data)
    except FileNotFoundError:
        raise AttachmentError("there is no such file", where=where, hint="Check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or error
        raise AttachmentError(f"the file cannot be read ({reason})", where=where) from error
    if len(data) > MAX_BYTES:
        raise AttachmentError(
            f"the file has {size:,} bytes, and at most {MAX_BYTES:,} can be attached",
            where=where,
            hint="Attach the part that matters.",
        )
    text, note = decode(data, where)
    return Attachment(name=one_line(path.name), text=text, note=note)


def decode(data: bytes, where: str) -> tuple[str, str]:
    """The text of a file with `\\n` at the ends of its lines, and a note if its encoding had to be guessed.

    Raises:
        AttachmentError: It is not a text.
    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    note = ""
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        try:
            text = data.decode("utf-16" if is_utf16 else "cp1252")
        except UnicodeDecodeError:
            raise _not_text(where) from None
        note = "not UTF-8, read as Windows-1252"
    controls = len(_CONTROLS.findall(text))
    if "\0" in text or controls > _MAX_CONTROLS * len(text):
        raise _not_text(where)
    return text.replace("\r\n", "\n").replace("\r", "\n"), note


def with_attachments(question: str, attachments: Iterable[Attachment]) -> str:
    """The question with the files behind it, each with its name and in a fence that nothing in it closes."""
    parts = [question] if question else []
    return "\n\n".join([*parts, *map(fenced, attachments)])


def fenced(attachment: Attachment) -> str:
    """A file as Markdown: its name, and its text in a fence that is longer than any in the text."""
    longest = max(map(len, re.findall("`+", attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    suffix = attachment.name.rpartition(".")[2] if "." in attachment.name else ""
    language = suffix if suffix.isalnum() else ""
    end = "" if attachment.text.endswith("\n") else "\n"
    return f"File: {attachment.name}\n{fence}{language}\n{attachment.text}{end}{fence}"


def _not_text(where: str) -> AttachmentError:
    return AttachmentError(
        "this is not a text file (UTF-8, UTF-16 with a byte order mark, or Windows-1252)",
        where=where,
        hint="Attach a text file; of a document, its text.",
    )
