"""The tables of the chats, as a list of migrations: the database's `user_version` counts those that were applied.

Messages form a tree within their session, whose head is the newest message of the branch that is shown. Text that a
user or a model wrote may hold what UTF-8 cannot, so it is stored as TEXT through `stored` and read through `shown`:
every `str` comes back as it was, and SQLite's own functions and its search still see text.
"""

import sqlite3

TOKENS = "tokenize='unicode61 remove_diacritics 2', prefix='1 2'"

_CHATS = (
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- never one again that a deleted chat had
        created REAL NOT NULL,
        updated REAL NOT NULL,
        head INTEGER,
        title TEXT NOT NULL,
        folder TEXT NOT NULL,
        model TEXT NOT NULL,
        system TEXT NOT NULL,
        FOREIGN KEY (id, head) REFERENCES messages (session, id)
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session INTEGER NOT NULL REFERENCES sessions (id),
        parent INTEGER,
        depth INTEGER NOT NULL, -- 1 for a root
        created REAL NOT NULL,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        finish TEXT NOT NULL,
        text TEXT NOT NULL,
        attachments TEXT NOT NULL, -- JSON, as are numbers and steps: see message_rows.py
        numbers TEXT NOT NULL,
        steps TEXT NOT NULL,
        UNIQUE (session, id),
        FOREIGN KEY (session, parent) REFERENCES messages (session, id)
    )""",
    "CREATE INDEX messages_by_parent ON messages (session, parent)",
    "CREATE INDEX sessions_by_time ON sessions (updated)",
    "CREATE INDEX sessions_by_head ON sessions (head)",
    f"CREATE VIRTUAL TABLE texts USING fts5(text, content='messages', content_rowid='id', {TOKENS})",
    f"CREATE VIRTUAL TABLE titles USING fts5(title, content='sessions', content_rowid='id', {TOKENS})",
    *(
        statement
        for index, table, column in (("texts", "messages", "text"), ("titles", "sessions", "title"))
        for statement in (
            f"""CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN
                INSERT INTO {index} (rowid, {column}) VALUES (new.id, new.{column});
            END""",
            f"""CREATE TRIGGER {table}_deleted AFTER DELETE ON {table} BEGIN
                INSERT INTO {index} ({index}, rowid, {column}) VALUES ('delete', old.id, old.{column});
            END""",
            f"""CREATE TRIGGER {table}_changed AFTER UPDATE OF {column} ON {table}
            WHEN old.{column} IS NOT new.{column} BEGIN
                INSERT INTO {index} ({index}, rowid, {column}) VALUES ('delete', old.id, old.{column});
                INSERT INTO {index} (rowid, {column}) VALUES (new.id, new.{column});
            END""",
        )
    ),
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_CHATS,)


def version(connection: sqlite3.Connection) -> int:
    """Return the number of migrations applied to the database; 0 for a new one."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def migrate(connection: sqlite3.Connection) -> None:
    """Apply all missing migrations, or none; another process may be doing the same."""
    if version(connection) >= len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in MIGRATIONS[version(connection) :]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def encode_text(text: str) -> bytes:
    """Return bytes for `CAST(? AS TEXT)`: UTF-8, with lone surrogates encoded alike."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text that `encode_text` got; damaged bytes do not hide the rest."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
