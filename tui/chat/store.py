"""Conversations on disk: one JSON file each. Nothing that is there is ever written over unseen."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tui.chat.conversation import FORMAT, Conversation, new_id
from tui.chat.errors import ConversationFileError
from tui.chat.files import PARTIAL, locked, make_folder, write_whole
from tui.chat.search import Hit, find, ranked, words_of
from tui.chat.text import mend
from tui.client.plain import one_line

TRASH_DAYS = 30
_DAY = 86_400
_SUFFIX = ".json"

Saved = Literal["saved", "copied"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation in the list."""

    id: str
    title: str
    """Never empty, one line."""
    used: float
    """Seconds since 1970."""
    problem: str = ""
    """Why it cannot be read; it stays where it is."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What `restore` wants to undo a deletion."""

    id: str
    trashed: Path


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A conversation at a moment."""

    number: int
    data: bytes


class ConversationStore:
    """Conversations in a folder. All but `save` block: call them in a thread. All raise ConversationFileError.

    Args:
        folder: Where they are; made when the first is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trash = folder / "trash"
        self._lock = threading.RLock()
        self._seen: dict[str, str] = {}
        """Digests of files as they were loaded or saved here last."""
        self._numbers = itertools.count(1)
        self._saved: dict[str, int] = {}
        """Numbers of the snapshots that were saved last: a thread that was late must not undo them."""
        self._deleted: set[str] = set()
        self._listed: dict[str, tuple[tuple[int, int, int], Entry]] = {}
        """By id, with what the file system said of the file."""
        self._order = asyncio.Lock()
        self._saves: set[asyncio.Task[Saved]] = set()

    def entries(self) -> list[Entry]:
        """All of them, last used first. Only files that changed since the last call are read."""
        listed = {}
        for file in self._files():
            with contextlib.suppress(OSError):  # deleted meanwhile
                state = file.stat()
                signature = (state.st_mtime_ns, state.st_size, state.st_ino)
                id = file.name.removesuffix(_SUFFIX)
                known = self._listed.get(id)
                is_known = known is not None and known[0] == signature
                listed[id] = known if known and is_known else (signature, _entry(id, Path(file.path), state.st_mtime))
        self._listed = listed
        return sorted((entry for _, entry in listed.values()), key=lambda entry: (-entry.used, entry.title))

    def load(self, id: str) -> Conversation:
        """Read one."""
        with self._lock:
            data = self._read(id)
            conversation = _parse(data, id, self._path(id))
            self._seen[id] = _digest(data)
        conversation.end_running("the conversation was left before the answer ended")
        return conversation

    async def save(self, conversation: Conversation) -> Saved:
        """Write it; does not block the event loop, goes on if cancelled, keeps the order. An empty one has no file.

        If its file was changed by somebody else since it was loaded or saved here, the other's stays and this one
        goes on as a copy: it has another id and title then, and "copied" is returned.
        """
        task = asyncio.create_task(self._save_in_turn(conversation))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)
        return await asyncio.shield(task)

    def save_now(self, conversation: Conversation) -> Saved:
        """The same, blocking: for the moment before the end."""
        return self._save(conversation, self._snapshot(conversation))

    def rename(self, id: str, title: str) -> None:
        """Change a title on disk. If it is open, assign its `title` as well."""
        with self._changing():
            data = self._read(id)
            conversation = _parse(data, id, self._path(id))
            conversation.title = title
            renamed = _dump(conversation)
            write_whole(self._path(id), renamed)
            if self._seen.get(id) == _digest(data):
                self._seen[id] = _digest(renamed)

    def delete(self, id: str) -> Deleted:
        """Move it to the trash, for 30 days. Saving it later does nothing, unless it is restored."""
        with self._changing():
            make_folder(self._trash)
            trashed = self._trash / f"{id}.{time.time_ns()}{_SUFFIX}"
            try:
                self._path(id).rename(trashed)
            except FileNotFoundError:
                raise self._not_there(id) from None
            self._deleted.add(id)
            os.utime(trashed)  # the days count from now
            self._empty_trash()
        return Deleted(id, trashed)

    def restore(self, deleted: Deleted) -> str:
        """Undo a deletion; returns its id, which is another one if there is a file in its place."""
        with self._changing():
            id = new_id() if self._path(deleted.id).exists() else deleted.id
            try:
                deleted.trashed.rename(self._path(id))
            except FileNotFoundError:
                raise self._not_there(deleted.id) from None
            self._deleted.discard(deleted.id)
        return id

    def search(self, query: str) -> list[Hit]:
        """Conversations with all words of the query, best first. Those that cannot be read are passed over."""
        words = words_of(mend(query))
        hits = []
        for file in self._files() if words else ():
            id = file.name.removesuffix(_SUFFIX)
            with contextlib.suppress(ConversationFileError):
                hit = find(_parse(self._read(id), id, self._path(id)), words)
                hits += [hit] if hit else []
        return ranked(hits)

    def _files(self) -> Iterator[os.DirEntry[str]]:
        """The conversations' files. What a crash left behind is removed."""
        try:
            with os.scandir(self.folder) as files:
                for file in files:
                    if file.name.endswith(PARTIAL) and file.name.startswith("."):
                        with contextlib.suppress(OSError):
                            if file.stat().st_mtime < time.time() - _DAY:
                                Path(file.path).unlink()
                    elif file.name.endswith(_SUFFIX) and file.is_file():
                        yield file
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure("the conversations cannot be listed", error) from error

    async def _save_in_turn(self, conversation: Conversation) -> Saved:
        async with self._order:
            snapshot = self._snapshot(conversation)  # here, where nothing changes it meanwhile
            return await asyncio.to_thread(self._save, conversation, snapshot)

    def _snapshot(self, conversation: Conversation) -> _Snapshot:
        return _Snapshot(next(self._numbers), _dump(conversation))

    def _save(self, conversation: Conversation, snapshot: _Snapshot) -> Saved:
        with self._changing():
            id, data = conversation.id, snapshot.data
            if id in self._deleted or snapshot.number < self._saved.get(id, 0):
                return "saved"
            path, digest = self._path(id), _digest(data)
            present = _digest(path.read_bytes()) if path.exists() else None
            self._saved[id] = snapshot.number
            if present == digest:
                self._seen[id] = digest
                return "saved"
            is_ours = present is None or present == self._seen.get(id)
            if conversation.is_empty and is_ours:
                path.unlink(missing_ok=True)
                return "saved"
            if not is_ours:
                title = f"{conversation.label} (copy)"
                data = json.dumps({**json.loads(data), "title": title}, ensure_ascii=False).encode()
                conversation.id, conversation.title = new_id(), title
            write_whole(self._path(conversation.id), data)
            self._seen[conversation.id] = _digest(data)
            return "saved" if is_ours else "copied"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only one that changes files in the folder."""
        with self._lock:
            try:
                make_folder(self.folder)
                with locked(self.folder / ".lock"):
                    yield
            except OSError as error:
                raise self._failure("the conversations cannot be written", error) from error

    def _read(self, id: str) -> bytes:
        try:
            return self._path(id).read_bytes()
        except FileNotFoundError:
            raise self._not_there(id) from None
        except OSError as error:
            raise ConversationFileError(
                f"the conversation cannot be read ({error.strerror or error})", where=str(self._path(id))
            ) from error

    def _empty_trash(self) -> None:
        for old in self._trash.iterdir():
            with contextlib.suppress(OSError):
                if old.stat().st_mtime < time.time() - TRASH_DAYS * _DAY:
                    old.unlink()

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"

    def _not_there(self, id: str) -> ConversationFileError:
        return ConversationFileError(
            "the conversation is not there any more",
            where=str(self._path(id)),
            hint="Was it deleted in another window?",
        )

    def _failure(self, what: str, error: OSError) -> ConversationFileError:
        return ConversationFileError(
            f"{what} ({error.strerror or error})",
            where=str(self.folder),
            hint="This user must be able to write there, and the disk must have room.",
        )


class _Header(BaseModel):
    """What the list wants of a file."""

    model_config = ConfigDict(extra="ignore")

    format: int
    title: str = ""
    used: float = 0.0


def _entry(id: str, path: Path, changed: float) -> Entry:
    try:
        header = _header(path.read_bytes(), path)
    except ConversationFileError as error:
        return Entry(id, one_line(path.name), changed, problem=f"{error.what}. {error.hint}")
    except FileNotFoundError:
        raise
    except OSError as error:
        return Entry(id, one_line(path.name), changed, problem=f"the file cannot be read ({error.strerror or error})")
    return Entry(id, Conversation(title=header.title).label, header.used or changed)


def _header(data: bytes, path: Path) -> _Header:
    try:
        header = _Header.model_validate_json(data)
    except ValidationError as error:
        raise _unreadable(path, error) from None
    if header.format > FORMAT:
        raise ConversationFileError(
            f"a newer version wrote this conversation (format {header.format}; this one reads up to {FORMAT})",
            where=str(path),
            hint="Update edge-agent to open it.",
        )
    return header


def _parse(data: bytes, id: str, path: Path) -> Conversation:
    try:
        conversation = Conversation.model_validate_json(data)
    except ValidationError as error:
        _header(data, path)  # perhaps it is of a newer version
        raise _unreadable(path, error) from None
    conversation.id = id
    return conversation


def _unreadable(path: Path, error: ValidationError) -> ConversationFileError:
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return ConversationFileError(
        f"this is not a conversation that can be read ({place + ': ' if place else ''}{fault['msg']})",
        where=str(path),
        hint="The file is left as it is.",
    )


def _dump(conversation: Conversation) -> bytes:
    return conversation.model_dump_json().encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
