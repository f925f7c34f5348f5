"""The file: who may read it, its version, several processes, processes that are killed."""

import os
import random
import signal
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import StoreFailed
from localdflash.chat import database
from tests.chat.stored import chat, lines, opened, program, texts

# Writes without end, and says what is stored: session, message, text.
WRITES = """
store = ChatStore.open(Path(sys.argv[1]), print)
session, parent, i = store.create(folder="/"), None, 0
while True:
    text = f"message {i} " + "word " * (i % 500)
    parent = store.add(session, parent, Message("assistant" if i % 2 else "user", text)).id
    sys.stdout.write(f"{session} {i}\\n")  # in one piece
    sys.stdout.flush()
    i += 1
    if i == int(sys.argv[2]):
        break
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def _loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_loose_umask")
def test_everything_is_for_this_user_alone(path: Path) -> None:
    store = opened(path)
    chat(store, "secret")
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert files == dict.fromkeys(("chats.db", "chats.db-wal", "chats.db-shm", "chats.db.lock"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    store.close()
    assert sorted(os.listdir(path.parent)) == ["chats.db", "chats.db.lock"]


@pytest.mark.usefixtures("_loose_umask")
def test_a_file_that_others_could_read_no_longer_is(path: Path) -> None:
    opened(path).close()
    path.chmod(0o644)
    store = opened(path)
    chat(store, "secret")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def migrated(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, statements))


def columns(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [row[1] for row in connection.execute("PRAGMA table_info (sessions)")]
    connection.close()
    return found


def test_a_file_of_an_older_version_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    session = chat(store, "a", "b")
    store.close()
    migrated(
        monkeypatch,
        "ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "UPDATE sessions SET pinned = length(title)",
    )
    for _ in range(2):
        store = opened(path)
        assert texts(store, session) == ["a", "b"]
        chat(store, "c")
        store.close()
    assert columns(path)[-1] == "pinned"


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    session = chat(store, "a", "b")
    store.close()
    with monkeypatch.context() as patch:
        migrated(patch, "ALTER TABLE sessions ADD COLUMN pinned INTEGER", "UPDATE absent SET x = 1")
        with pytest.raises(StoreFailed, match="no such table: absent"):
            opened(path)
    assert "pinned" not in columns(path)
    store = opened(path)
    assert texts(store, session) == ["a", "b"]


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    store = opened(path)
    chat(store, "a")
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed) as caught:
        opened(path)
    assert str(caught.value) == (
        f"{path}: version 7, of a newer localdflash: update this one, which reads up to 1, or move the file away"
    )
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["chats.db", "chats.db.lock"]


@pytest.mark.nightly
def test_what_was_stored_survives_a_kill_at_any_moment(path: Path) -> None:
    stored: dict[int, int] = {}  # by session, the last message of which add() had returned
    rng = random.Random(3)
    for _ in range(12):
        with program(WRITES, path, -1) as writer:
            said = [lines(writer).readline() for _ in range(rng.randrange(1, 120))]
            time.sleep(rng.random() * 0.003)  # somewhere in the next transaction
            writer.send_signal(signal.SIGKILL)
            said += lines(writer).readlines()
            session, last = map(int, said[-1].split())
            stored[session] = last
    store = opened(path)
    for session, last in stored.items():
        numbers = [int(text.split()[1]) for text in texts(store, session)]
        assert numbers == list(range(len(numbers)))
        assert last <= numbers[-1] <= last + 1  # one may be stored that could not be said to be
        assert session in {info.id for info in store.sessions(f"message {last}")}
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for index in database.INDEXES:
        connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
    connection.close()
