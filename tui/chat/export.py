"""A conversation as a Markdown file."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from tui.chat.attachment import fenced
from tui.chat.conversation import Answer, Conversation
from tui.chat.errors import ConversationFileError

_LONGEST_NAME = 80
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')
_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"
}
"""Names that Windows keeps for devices, whatever follows a dot."""


def as_markdown(conversation: Conversation) -> str:
    """The whole conversation as it is shown, its texts unchanged."""
    parts = [f"# {conversation.label}"]
    if conversation.system_prompt:
        parts += ["## System prompt", conversation.system_prompt]
    for turn in conversation.turns:
        parts.append("## Question")
        parts += [turn.question] if turn.question else []
        parts += map(fenced, turn.attachments)
        if turn.answer is not None:
            parts += _answer(turn.answer)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def file_name(title: str) -> str:
    """A name for a file that every system takes, Windows too; without a suffix."""
    name = _FORBIDDEN.sub(" ", title)
    # not cut inside a character of several bytes: file systems count bytes
    name = " ".join(name.split()).encode(errors="ignore")[:_LONGEST_NAME].decode(errors="ignore").strip(". ")
    if name.partition(".")[0].rstrip().lower() in _DEVICES:
        name = f"_{name}"
    return name or "conversation"


def export(conversation: Conversation, target: Path, *, overwrite: bool = False) -> Path:
    """Write it as Markdown; returns the file. Blocks: call it in a thread.

    Args:
        conversation: What to write.
        target: A file, or a folder that exists: then a free name is made from the title.
        overwrite: Whether a file that exists may be written over.

    Raises:
        ConversationFileError: The file exists, or cannot be written.
    """
    text = as_markdown(conversation)
    try:
        if not target.is_dir():
            return _write(text, target, "w" if overwrite else "x")
        name = file_name(conversation.label)
        for number in count(1):
            path = target / (f"{name}.md" if number == 1 else f"{name} ({number}).md")
            try:
                return _write(text, path, "x")
            except FileExistsError:
                continue
        raise AssertionError("numbers do not end")
    except FileExistsError:
        raise ConversationFileError(
            "there is a file of this name", where=str(target), hint="Choose another name, or let it be written over."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or error
        raise ConversationFileError(
            f"the file cannot be written ({reason})", where=str(target), hint="Choose another folder."
        ) from error


def _write(text: str, path: Path, mode: str) -> Path:
    with path.open(mode, encoding="utf-8", newline="\n") as file:
        file.write(text)
    return path


def _answer(answer: Answer) -> list[str]:
    parts = [f"## Answer ({answer.model})" if answer.model else "## Answer"]
    parts += [answer.text] if answer.text else []
    if answer.state == "stopped":
        parts.append("*(stopped here)*")
    elif answer.state == "running":
        parts.append("*(not finished yet)*")
    elif answer.state == "broken":
        parts.append(f"*(broke off: {answer.error})*")
    elif answer.end is not None and answer.end.finish_reason == "length":
        parts.append("*(the limit of tokens was reached)*")
    return parts
