"""Lists of chats: the newest, and those that contain some words."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any

from localdflash.chat.schema import stored
from localdflash.chat.searching import Query, excerpt

_INFO = """
    SELECT sessions.id, title, folder, model, system, sessions.created, updated, coalesce(depth, 0),
        coalesce(substr(text, 1, 1000), '')
    FROM sessions LEFT JOIN messages ON messages.id = head
"""
_NEWEST = "ORDER BY updated DESC, sessions.id DESC LIMIT ?"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One chat of a list. `messages` counts those of the branch that is shown; times are seconds since 1970."""

    id: int
    title: str
    folder: str
    model: str
    system: str
    created: float
    updated: float
    messages: int
    excerpt: str  # of the newest message that was found; where none was searched for, of the last one


def one(database: Connection, session: int) -> SessionInfo:
    """One chat, which must exist."""
    return _info(database.execute(f"{_INFO} WHERE sessions.id = ?", (session,)).fetchone())


def newest(database: Connection, folder: str | None, limit: int) -> list[SessionInfo]:
    """The chats written to last, of this folder if one is given, without empty ones."""
    here = "AND folder = CAST(? AS TEXT)" if folder is not None else ""
    values = (limit,) if folder is None else (stored(folder), limit)
    return [_info(row) for row in database.execute(f"{_INFO} WHERE head IS NOT NULL {here} {_NEWEST}", values)]


def found(database: Connection, query: Query, limit: int) -> list[SessionInfo]:
    """The chats that have all of the words in one message or in the title, the newest first."""
    if not query.words:
        return []
    messages: dict[int, int] = {}  # by session, the newest that was found
    for session, message in _hits(database, query, "texts", "messages", "text", "session"):
        messages.setdefault(session, message)
        if len(messages) == limit:  # they come newest first, so a word that is everywhere costs no more than another
            break
    titled = {number for number, _ in _hits(database, query, "titles", "sessions", "title", "sessions.id")}
    texts = dict(_chosen(database, "SELECT id, text FROM messages WHERE id IN", messages.values()))
    infos = [_info(row) for row in _chosen(database, f"{_INFO} WHERE sessions.id IN", {*messages, *titled}, limit)]
    return [
        replace(info, excerpt=excerpt(texts[messages[info.id]], query.words)) if info.id in messages else info
        for info in infos
    ]


def _hits(
    database: Connection, query: Query, index: str, table: str, column: str, session: str
) -> Iterator[tuple[int, int]]:
    """Session and id of each row that has all of the words, the newest row first."""
    conditions = [f"instr({table}.{column}, CAST(? AS TEXT))"] * len(query.parts)
    values: list[Any] = [stored(part) for part in query.parts]
    source, order = table, f"{table}.id"
    if query.index:
        source, order = f"{index} JOIN {table} ON {table}.id = {index}.rowid", f"{index}.rowid"
        conditions.append(f"{index} MATCH ?")
        values.append(query.index)
    select = f"SELECT {session}, {table}.id FROM {source} WHERE {' AND '.join(conditions)} ORDER BY {order} DESC"
    yield from database.execute(select, values)


def _chosen(database: Connection, select: str, numbers: Any, limit: int = 0) -> list[tuple[Any, ...]]:
    order, values = (_NEWEST, (limit,)) if limit else ("", ())
    return database.execute(
        f"{select} (SELECT value FROM json_each(?)) {order}", (json.dumps(list(numbers)), *values)
    ).fetchall()


def _info(row: tuple[Any, ...]) -> SessionInfo:
    number, title, folder, model, system, created, updated, messages, start = row
    return SessionInfo(number, title, folder, model, system, created, updated, messages, excerpt(start))
