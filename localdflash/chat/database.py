"""SQLite database of the chats: private to the user, shared by several processes, and replaced if it is damaged.

Only a process with the exclusive lock may rename the damaged file and create a new one. Otherwise a process that still
has the damaged file open would remove the new file's write-ahead log on exit.
"""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from localdflash.base.errors import LocaldflashError, StoreError, StoreLost
from localdflash.base.files import paths
from localdflash.base.system import file_lock
from localdflash.base.system.owner import is_open_to_others

LOCK_TIMEOUT_SECONDS = 5.0  # how long to wait for another process's lock
_POLL_SECONDS = 0.01
SEARCH_INDEXES = ("texts", "titles")  # FTS5 tables
_SIDE_FILES = ("-wal", "-shm")  # suffixes of SQLite's write-ahead log (WAL) and shared-memory file
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_READONLY: "cannot write; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot open; check the permissions of the file and its folder",
    sqlite3.SQLITE_BUSY: f"another program has kept it locked for {LOCK_TIMEOUT_SECONDS:.0f} seconds; try again",
    sqlite3.SQLITE_TOOBIG: "a text of this size cannot be stored",
}

_FTS_OPTIONS = "tokenize='unicode61 remove_diacritics 2', prefix='1 2'"

_CHATS = (
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- ids of deleted chats are not reused
        created REAL NOT NULL,
        updated REAL NOT NULL,
        head INTEGER, -- newest message of the shown branch; the messages of a session form a tree
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
        attachments TEXT NOT NULL, -- JSON
        numbers TEXT NOT NULL, -- JSON, statistics of an answer: `Message.numbers`
        steps TEXT NOT NULL, -- JSON, an answer's verify steps: `StepRecord`
        UNIQUE (session, id),
        FOREIGN KEY (session, parent) REFERENCES messages (session, id)
    )""",
    "CREATE INDEX messages_by_parent ON messages (session, parent)",
    "CREATE INDEX sessions_by_time ON sessions (updated)",
    "CREATE INDEX sessions_by_head ON sessions (head)",
    f"CREATE VIRTUAL TABLE texts USING fts5(text, content='messages', content_rowid='id', {_FTS_OPTIONS})",
    f"CREATE VIRTUAL TABLE titles USING fts5(title, content='sessions', content_rowid='id', {_FTS_OPTIONS})",
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

MIGRATIONS: tuple[tuple[str, ...], ...] = (_CHATS,)  # statements; their number is the schema version


class DatabaseLock:
    """Lock on `<file>.lock`: shared by processes that use the database, exclusive to check or replace the database."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._lock_error(error) from error

    def try_exclusive(self) -> bool:
        """Take the exclusive lock and return True; if other processes use the file, take the shared one: False."""
        if self._try_lock(shared=False):
            return True
        self.share()
        return False

    def share(self) -> None:
        """Take the shared lock. StoreError if another process keeps the exclusive lock for `LOCK_TIMEOUT_SECONDS`."""
        end = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not self._try_lock(shared=True):
            if time.monotonic() > end:
                raise StoreError(f"{self._path}: another localdflash keeps your chats locked; try again")
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try_lock(self, *, shared: bool) -> bool:
        try:
            return file_lock.try_lock(self._file, shared=shared)
        except OSError as error:
            raise self._lock_error(error) from error

    def _lock_error(self, error: OSError) -> StoreError:
        return StoreError(f"{self._path}: cannot lock your chats: {error.strerror}")


class Database:
    """Connection that threads use in turn; `path` None: in memory. `say` gets a line if the file is damaged."""

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self._path, self._say, self._gate = path, say, threading.RLock()
        if path is None:
            self._lock, self._connection = None, _connect(":memory:")
            return
        self._lock, self._connection = self._open_locked(path)
        self._identity = _file_identity(path)
        self._wal_identity: tuple[int, int] | None = None  # identity of the WAL at the last write

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for statements that change no rows. StoreError if the file cannot be read."""
        with self._gate, self._recover_from_errors():
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that any error rolls back. StoreLost if the file was replaced."""
        with self._gate, self._recover_from_errors():
            self._check_not_replaced()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back already
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        with self._gate:
            self._connection.close()
            if self._lock is not None:
                self._lock.release()

    def _open_locked(self, path: Path) -> tuple[DatabaseLock, sqlite3.Connection]:
        """Open the file, creating it and its folder if missing; return the shared lock and the connection."""
        try:
            paths.create_private(path.parent)
        except LocaldflashError as error:
            raise StoreError(str(error)) from error
        lock = DatabaseLock(path)
        try:
            return lock, self._open(path, lock)
        except BaseException:
            lock.release()
            raise

    def _check_not_replaced(self) -> None:
        """If the open file was removed or replaced, open the file at its path, then raise StoreLost."""
        if self._path is None or self._lock is None:
            return
        wal = self._path.with_name(self._path.name + "-wal")
        if _file_identity(self._path) == self._identity:
            self._wal_identity = _file_identity(wal)
            return
        if self._wal_identity and _file_identity(wal) == self._wal_identity:  # the old file's WAL
            for end in _SIDE_FILES:
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        lock, connection = self._open_locked(self._path)
        self._connection.close()
        self._lock.release()
        self._lock, self._connection, self._identity = lock, connection, _file_identity(self._path)
        raise StoreLost(f"{self._path}: was removed or replaced")

    def _open(self, path: Path, lock: DatabaseLock) -> sqlite3.Connection:
        is_exclusive = lock.try_exclusive()
        try:
            return _connect_file(path, check=is_exclusive)
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise self._store_error(error) from error
            if not is_exclusive:
                raise _damaged_in_use(path) from error
            connection, notice = self._replace_file(path)
            self._say(notice)
            return connection
        finally:
            lock.share()

    @contextmanager
    def _recover_from_errors(self) -> Iterator[None]:
        """Raise StoreError for an SQLite error, after rebuilding damaged indexes or replacing a damaged file."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a bug in this program
        except sqlite3.Error as error:
            if _error_code(error) == sqlite3.SQLITE_CORRUPT_VTAB:
                raise self._rebuild_indexes() from error
            raise (self._start_new_file() if _is_damage(error) else self._store_error(error)) from error

    def _rebuild_indexes(self) -> StoreError:
        """Rebuild the search indexes from the messages and titles; return the error to raise."""
        try:
            for index in SEARCH_INDEXES:
                self._connection.execute(f"INSERT INTO {index} ({index}) VALUES ('rebuild')")
        except sqlite3.Error as error:
            return self._start_new_file() if _is_damage(error) else self._store_error(error)
        return StoreError(f"{self._path}: its search index was damaged and was rebuilt; try again")

    def _start_new_file(self) -> StoreError:
        """Rename the file and create a new one, unless another process has it open; return the error to raise."""
        if self._path is None or self._lock is None:
            return StoreError("chats: damaged in memory")
        if not self._lock.try_exclusive():
            return _damaged_in_use(self._path)
        self._connection.close()  # before the rename: closing removes the WAL by its name
        try:
            self._connection, notice = self._replace_file(self._path)
            self._identity = _file_identity(self._path)
        finally:
            self._lock.share()
        return StoreLost(notice)

    def _replace_file(self, path: Path) -> tuple[sqlite3.Connection, str]:
        """Rename the damaged file and create a new one; return the new file's connection and a notice for the user."""
        aside = _set_aside(path)
        try:
            notice = f"{path}: was damaged; it is now {aside.name}, and a new one was created"
            return _connect_file(path, check=False), notice
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        reason = _REASONS.get(_error_code(error) & 0xFF, f"cannot read or write: {error}")
        return StoreError(f"{self._path or 'chats'}: {reason}")


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _connect_file(path: Path, check: bool) -> sqlite3.Connection:
    """Open or create the file with mode 0600. `check`: verify the file if the last process did not close it."""
    wal = path.with_name(path.name + "-wal")
    try:
        with suppress(FileExistsError):  # SQLite's side files get the mode of the database
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path}: not a regular file; move or delete it")
        if is_open_to_others(status):
            path.chmod(0o600)
        has_wal = wal.exists() and wal.stat().st_size > 0
    except OSError as error:
        raise StoreError(f"{path}: cannot open your chats: {error.strerror}") from error
    return _connect(str(path), check and has_wal)


def _connect(name: str, check: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = decode_text
    try:
        if (version := _version(connection)) > len(MIGRATIONS):
            raise StoreError(
                f"{name}: schema version {version} is of a newer localdflash (this one reads up to {len(MIGRATIONS)});"
                " update localdflash, or move the file away"
            )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON").fetchall()
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        if check and connection.execute("PRAGMA quick_check (1)").fetchone() != ("ok",):
            damage = sqlite3.DatabaseError("inconsistent pages")
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path) -> Path:
    """Rename a damaged file and its side files to the first free `<file>.broken-<n>`."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.broken-{number}")
        if not any(os.path.lexists(f"{aside}{end}") for end in ("", *_SIDE_FILES)):
            break
    try:
        for end in (*_SIDE_FILES, ""):  # the file last: SQLite would apply an old WAL to a new file
            with suppress(FileNotFoundError):
                os.rename(f"{path}{end}", f"{aside}{end}")
    except OSError as error:
        raise StoreError(f"{path}: damaged, and cannot be renamed: {error.strerror}") from error
    return aside


def _damaged_in_use(path: Path) -> StoreError:
    return StoreError(f"{path}: damaged; quit every other localdflash and start again to begin a new one")


def _is_damage(error: sqlite3.Error) -> bool:
    return _error_code(error) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _error_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)


def _version(connection: sqlite3.Connection) -> int:
    """Return the number of migrations applied to the database; 0 for a new one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _migrate(connection: sqlite3.Connection) -> None:
    """Apply all missing migrations in one transaction. Another process may be applying them now."""
    if _version(connection) >= len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in MIGRATIONS[_version(connection) :]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def encode_text(text: str) -> bytes:
    """Return UTF-8 for `CAST(? AS TEXT)`. Lone surrogates are encoded too, so that any `str` can be stored."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text that `encode_text` encoded; damaged bytes become U+FFFD."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
