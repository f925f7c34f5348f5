"""Store of chats in an SQLite database that several processes and threads may use at once."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec

from localdflash.base.errors import StoreError, StoreLost, UsageError
from localdflash.chat import chat_listing
from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.database import SEARCH_INDEXES, Database, encode_text
from localdflash.chat.messages import Attachment, AttachmentKind, Message, StepRecord

_COLUMNS = ("created", "role", "finish", "text", "attachments", "numbers", "steps")
_PLACEHOLDERS = "?, ?, ?, " + ", ".join(["CAST(? AS TEXT)"] * 4)
_BRANCH = f""" -- a message and its ancestors, root first
    WITH RECURSIVE branch (id, parent, depth) AS (
        SELECT id, parent, depth FROM messages WHERE id = ?
        UNION ALL
        SELECT above.id, above.parent, above.depth FROM branch JOIN messages AS above ON above.id = branch.parent
    )
    SELECT messages.id, {", ".join(f"messages.{column}" for column in _COLUMNS)}
    FROM branch JOIN messages ON messages.id = branch.id ORDER BY branch.depth
"""

_steps_of = msgspec.json.Decoder(tuple[StepRecord, ...]).decode  # three times as fast as `json`


class ChatStore:
    """Chats (`session`: id), each a tree of messages (`message`: id). The shown branch ends at the chat's head."""

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        """Open or create the database `path`; None: in memory. `say` receives a line if the file is damaged."""
        self._database = Database(path, say)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def create(self, *, folder: str, model: str = "", system: str = "") -> int:
        """Create a chat and return its id. It gets its title, and is listed, once it has a message."""
        with self._database.writing() as database:
            return _insert(
                database,
                "INSERT INTO sessions (created, updated, title, folder, model, system)"
                " VALUES (?1, ?1, '', CAST(?2 AS TEXT), CAST(?3 AS TEXT), CAST(?4 AS TEXT))",
                (time.time(), *map(encode_text, (folder, model, system))),
            )

    def add(self, session: int, parent: int | None, message: Message) -> Message:
        """Store a message below `parent` (None: as a root) and as the new head; StoreLost if the chat was deleted."""
        with self._database.writing() as database:
            return _add_message(database, session, parent, message)

    def update(self, message: Message, before: Message | None = None) -> Message:
        """Store the changes of a message that has an id; StoreLost if its chat was deleted meanwhile.

        If another process has changed the text since `before`, add this message as another version.
        """
        changes = f"({', '.join(_COLUMNS)}) = ({_PLACEHOLDERS})"
        select = "SELECT session, parent, text FROM messages WHERE id = ?"
        with self._database.writing() as database:
            row = database.execute(select, (message.id,)).fetchone()
            if row is None:
                raise StoreLost(f"message {message.id} cannot be stored: its chat was deleted")
            session, parent, text = row
            if before is not None and text not in (before.text, message.text):
                return _add_message(database, session, parent, message)
            database.execute(f"UPDATE messages SET {changes} WHERE id = ?", (*_to_row(message), message.id))
            database.execute("UPDATE sessions SET updated = ? WHERE id = ?", (time.time(), session))
        return message

    def set_head(self, session: int, message: int) -> None:
        """Make the branch that ends with this message the shown branch."""
        with self._database.writing() as database:
            _check_message(database, session, message)
            _set_head(database, session, message)

    def branch(self, session: int) -> list[Message]:
        """Return the messages of the shown branch, oldest first."""
        with self._database.reading() as database:
            rows = database.execute(_BRANCH, (_head(database, session),)).fetchall()
        return [_from_row(row) for row in rows]

    def versions(self, message: int) -> list[int]:
        """Return the ids of all messages with the same parent, this one included, oldest first."""
        siblings = """
            SELECT other.id FROM messages AS this
            JOIN messages AS other ON other.session = this.session AND other.parent IS this.parent
            WHERE this.id = ? ORDER BY other.id
        """
        with self._database.reading() as database:
            return [number for (number,) in database.execute(siblings, (message,))]

    def leaf(self, message: int) -> int:
        """Return the id of the newest descendant of this message, or of the message itself if it has none."""
        newest = """
            WITH RECURSIVE below (session, id) AS (
                SELECT session, id FROM messages WHERE id = ?
                UNION ALL SELECT child.session, child.id FROM below
                JOIN messages AS child ON child.session = below.session AND child.parent = below.id
            )
            SELECT max(id) FROM below
        """
        with self._database.reading() as database:
            (number,) = database.execute(newest, (message,)).fetchone()
        return message if number is None else int(number)

    def info(self, session: int) -> SessionInfo:
        """Return the list entry of this chat."""
        with self._database.reading() as database:
            _head(database, session)
            return chat_listing.session_info(database, session)

    def sessions(self, words: str = "", limit: int = 200) -> list[SessionInfo]:
        """Return the chats that have messages, newest first; with `words`, only chats that contain all these words."""
        with self._database.reading() as database:
            if words.strip():
                return chat_listing.search_sessions(database, words, limit)
            return chat_listing.newest_sessions(database, None, limit)

    def latest(self, folder: str | None = None) -> SessionInfo | None:
        """Return the chat with the newest message, in `folder` if given; None if there is none."""
        with self._database.reading() as database:
            return next(iter(chat_listing.newest_sessions(database, folder, 1)), None)

    def rename(self, session: int, title: str) -> None:
        """Set the chat's title; "" restores the title from its first message."""
        with self._database.writing() as database:
            _head(database, session)
            title = chat_listing.shorten(" ".join(title.split()), chat_listing.MAX_TITLE)
            _set_column(database, session, "title", title)
            _set_default_title(database, session)

    def set_system(self, session: int, text: str) -> None:
        """Set the chat's instructions."""
        with self._database.writing() as database:
            _head(database, session)
            _set_column(database, session, "system", text)

    def fork(self, session: int, message: int) -> int:
        """Create a chat with a copy of the branch up to this message, and return its id."""
        columns = ", ".join(("depth", *_COLUMNS))
        with self._database.writing() as database:
            _check_message(database, session, message)
            copy = _insert(
                database,
                "INSERT INTO sessions (created, updated, title, folder, model, system)"
                " SELECT ?1, ?1, title, folder, model, system FROM sessions WHERE id = ?2",
                (time.time(), session),
            )
            parent = None
            for number, *_ in database.execute(_BRANCH, (message,)).fetchall():
                parent = _insert(
                    database,
                    f"INSERT INTO messages (session, parent, {columns})"
                    f" SELECT ?, ?, {columns} FROM messages WHERE id = ?",
                    (copy, parent, number),
                )
            if parent is not None:
                _set_head(database, copy, parent)
            return copy

    def delete(self, session: int) -> StoreError | None:
        """Delete the chat, and erase its text from the file, the search indexes and the WAL. Takes 1 s per 100 MB.

        If the chat was deleted but its text could not be erased, return the error.
        """
        with self._database.writing() as database:
            _head(database, session)
            database.execute("UPDATE sessions SET head = NULL WHERE id = ?", (session,))
            database.execute("DELETE FROM messages WHERE session = ?", (session,))
            database.execute("DELETE FROM sessions WHERE id = ?", (session,))
            for index in SEARCH_INDEXES:  # FTS5 keeps deleted words until it merges an index
                database.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
        try:
            with self._database.reading() as database:
                database.execute("VACUUM")  # even with `secure_delete`, pages may hold copies of moved cells
                database.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchall()
        except StoreError as error:
            return error
        return None


def _head(database: Connection, session: int) -> int | None:
    """Return the head of a chat, None before the first message; UsageError if there is no such chat."""
    if 0 < session < 2**63:
        row = database.execute("SELECT head FROM sessions WHERE id = ?", (session,)).fetchone()
        if row:
            return None if row[0] is None else int(row[0])
    raise UsageError(f"there is no chat {session}")


def _check_message(database: Connection, session: int, message: int) -> None:
    """Raise UsageError if there is no such chat, or if it has no such message."""
    _head(database, session)
    of_chat = "SELECT 1 FROM messages WHERE session = ? AND id = ?"
    if not database.execute(of_chat, (session, message)).fetchone():
        raise UsageError(f"chat {session} has no message {message}")


def _depth(database: Connection, session: int, parent: int | None) -> int:
    """Return the depth of message `parent` in the tree, 0 for None; StoreLost if the chat or message was deleted."""
    row = database.execute(
        "SELECT CASE WHEN ?1 IS NULL THEN 0 ELSE (SELECT depth FROM messages WHERE session = ?2 AND id = ?1) END"
        " FROM sessions WHERE id = ?2",
        (parent, session),
    ).fetchone()
    if row is None or row[0] is None:
        raise StoreLost(f"chat {session} cannot be stored: it was deleted")
    return int(row[0])


def _add_message(database: Connection, session: int, parent: int | None, message: Message) -> Message:
    number = _insert(
        database,
        f"INSERT INTO messages (session, parent, depth, {', '.join(_COLUMNS)}) VALUES (?, ?, ?, {_PLACEHOLDERS})",
        (session, parent, _depth(database, session, parent) + 1, *_to_row(message)),
    )
    _set_head(database, session, number)
    _set_default_title(database, session)
    return replace(message, id=number)


def _insert(database: Connection, statement: str, values: tuple[Any, ...]) -> int:
    number = database.execute(statement, values).lastrowid
    assert number is not None
    return number


def _set_head(database: Connection, session: int, message: int) -> None:
    database.execute("UPDATE sessions SET head = ?, updated = ? WHERE id = ?", (message, time.time(), session))


def _set_column(database: Connection, session: int, column: str, text: str) -> None:
    database.execute(f"UPDATE sessions SET {column} = CAST(? AS TEXT) WHERE id = ?", (encode_text(text), session))


def _set_default_title(database: Connection, session: int) -> None:
    """Give a chat without a title the title of its first user message."""
    row = database.execute(
        f"SELECT messages.id, {', '.join(f'messages.{column}' for column in _COLUMNS)} FROM sessions"
        " JOIN messages ON messages.session = sessions.id"
        " WHERE sessions.id = ? AND title = '' AND role = 'user' ORDER BY messages.id LIMIT 1",
        (session,),
    ).fetchone()
    if row:
        _set_column(database, session, "title", chat_listing.make_title(_from_row(row)))


def _to_row(message: Message) -> tuple[Any, ...]:
    """Return the values of _COLUMNS, for _PLACEHOLDERS."""
    return (
        *(message.created, message.role, message.finish, encode_text(message.text)),
        _json([(one.kind, one.name, one.text) for one in message.attachments]),
        _json(dict(message.numbers)),
        msgspec.json.encode(message.steps),
    )


def _from_row(row: tuple[Any, ...]) -> Message:
    """Return the message of a row `id, *_COLUMNS`; StoreError if the row is damaged."""
    number, created, role, finish, text, attachments, numbers, steps = row
    try:
        return Message(
            role=role,
            text=text,
            attachments=_parse_attachments(attachments) if attachments != "[]" else (),
            finish=finish,
            numbers=msgspec.convert(json.loads(numbers), dict[str, Any]) if numbers != "{}" else {},
            steps=_steps_of(steps) if steps != "[]" else (),
            id=number,
            created=created,
        )
    except (ValueError, TypeError) as error:
        raise StoreError(f"message {number} is damaged and cannot be read") from error


def _parse_attachments(text: str) -> tuple[Attachment, ...]:
    rows = msgspec.convert(json.loads(text), list[tuple[AttachmentKind, str, str]])
    return tuple(Attachment(*row) for row in rows)


def _json(value: object) -> bytes:
    # Not ASCII: from two escaped lone surrogates in a row, `json.loads` would make one character.
    return encode_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
