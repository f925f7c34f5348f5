"""Lists of chats: the newest, and search results with an excerpt of the match."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any

from localdflash.chat.database import encode_text
from localdflash.chat.messages import Message

_INFO = """
    SELECT sessions.id, title, folder, model, system, sessions.created, updated, coalesce(depth, 0),
        coalesce(substr(text, 1, 1000), '')
    FROM sessions LEFT JOIN messages ON messages.id = head
"""
_NEWEST = "ORDER BY updated DESC, sessions.id DESC LIMIT ?"
MAX_TITLE = 60  # characters
MAX_EXCERPT = 120  # characters
_LEAD_CHARACTERS = 30  # length of an excerpt before the match
# Scripts without spaces between words (Thai to Khmer, Japanese, Chinese): the index cannot find their words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_UNSEARCHABLE = re.compile("[\x00\ud800-\udfff]")  # SQLite does not accept these in a query


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Entry of a list of chats. `messages`: number of messages in the shown branch. Times are seconds since 1970."""

    id: int
    title: str
    folder: str
    model: str
    system: str
    created: float
    updated: float
    messages: int
    excerpt: str  # from the newest message that matches; without a search, from the last message


def session_info(database: Connection, session: int) -> SessionInfo:
    """Return the list entry of an existing chat."""
    return _make_info(database.execute(f"{_INFO} WHERE sessions.id = ?", (session,)).fetchone())


def newest_sessions(database: Connection, folder: str | None, limit: int) -> list[SessionInfo]:
    """Return the chats with the newest messages; only those of `folder` if given, and no empty chats."""
    in_folder = "AND folder = CAST(? AS TEXT)" if folder is not None else ""
    values = (limit,) if folder is None else (encode_text(folder), limit)
    rows = database.execute(f"{_INFO} WHERE head IS NOT NULL {in_folder} {_NEWEST}", values)
    return [_make_info(row) for row in rows]


def search_sessions(database: Connection, text: str, limit: int) -> list[SessionInfo]:
    """Return the chats that have all words of `text` in one message, or in the title; newest first."""
    words = tuple(dict.fromkeys(_UNSEARCHABLE.sub(" ", text).split()))
    if not words:
        return []
    indexed = [word for word in words if any(map(str.isalnum, word)) and not _UNSPACED.search(word)]
    terms = ['"' + word.replace('"', '""') + '"' for word in indexed]
    if terms and indexed[-1] == words[-1]:
        terms[-1] += "*"
    query = " ".join(terms), [word for word in words if word not in indexed]
    messages: dict[int, int] = {}  # newest match by session
    for session, message in _search_rows(database, query, "texts", "messages", "text", "session"):
        messages.setdefault(session, message)
        if len(messages) == limit:  # rows come newest first: for a frequent word, most need not be read
            break
    titled = {number for number, _ in _search_rows(database, query, "titles", "sessions", "title", "sessions.id")}
    texts = dict(_select_ids(database, "SELECT id, text FROM messages WHERE id IN", messages.values()))
    infos = [
        _make_info(row) for row in _select_ids(database, f"{_INFO} WHERE sessions.id IN", {*messages, *titled}, limit)
    ]
    return [
        replace(info, excerpt=make_excerpt(texts[messages[info.id]], words)) if info.id in messages else info
        for info in infos
    ]


def _search_rows(
    database: Connection, query: tuple[str, Sequence[str]], index: str, table: str, column: str, session: str
) -> Iterator[tuple[int, int]]:
    """Yield session and id of the matching rows, newest first. `query`: an FTS5 expression or "", and substrings."""
    terms, substrings = query
    conditions = [f"instr({table}.{column}, CAST(? AS TEXT))"] * len(substrings)
    values: list[Any] = [encode_text(part) for part in substrings]
    source, order = table, f"{table}.id"
    if terms:
        source, order = f"{index} JOIN {table} ON {table}.id = {index}.rowid", f"{index}.rowid"
        conditions.append(f"{index} MATCH ?")
        values.append(terms)
    select = f"SELECT {session}, {table}.id FROM {source} WHERE {' AND '.join(conditions)} ORDER BY {order} DESC"
    yield from database.execute(select, values)


def _select_ids(database: Connection, select: str, numbers: Any, limit: int = 0) -> list[tuple[Any, ...]]:
    order, values = (_NEWEST, (limit,)) if limit else ("", ())
    return database.execute(
        f"{select} (SELECT value FROM json_each(?)) {order}", (json.dumps(list(numbers)), *values)
    ).fetchall()


def _make_info(row: tuple[Any, ...]) -> SessionInfo:
    number, title, folder, model, system, created, updated, messages, start = row
    return SessionInfo(number, title, folder, model, system, created, updated, messages, make_excerpt(start))


def make_title(message: Message) -> str:
    """Return a title for a chat from its first message: the first line that has a word, or an attachment's name."""
    lines = (*message.text.split("\n"), *(one.name for one in message.attachments))
    named = next((line for line in lines if any(map(str.isalnum, line))), "")
    return shorten(" ".join(named.split()), MAX_TITLE)


def make_excerpt(text: str, words: tuple[str, ...] = ()) -> str:
    """Return a line of text around the first occurrence of one of the words; without words, the start of the text."""
    positions = (_find_word(word, text) for word in words)
    first = min((position for position in positions if position >= 0), default=0)
    start = max(first - _LEAD_CHARACTERS, 0)
    line = " ".join(text[start : start + 4 * MAX_EXCERPT].split())
    return shorten("…" + line if start else line, MAX_EXCERPT)


def _find_word(word: str, text: str) -> int:
    """Return the index of a word, preferably at a word boundary; -1 if it does not occur."""
    pattern = re.escape(word)
    match = re.search(rf"(?<!\w){pattern}", text, re.IGNORECASE) or re.search(pattern, text, re.IGNORECASE)
    return match.start() if match else -1


def shorten(line: str, width: int) -> str:
    """Truncate a line to `width` characters, at a space if that loses little."""
    if len(line) <= width:
        return line
    beginning = line[: width - 1]
    space = beginning.rfind(" ")
    return (beginning[:space] if space > width // 2 else beginning).rstrip() + "…"
