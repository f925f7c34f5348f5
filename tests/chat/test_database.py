"""Database file of the chats: private, migrated, shared, and set aside if it is damaged."""

import os
import random
import shutil
import signal
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import LocaldflashError, StoreError, StoreLost
from localdflash.chat import database
from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from tests.chat.stored import chat, lines, open_store, run_program, texts

# Add messages without end, and print the session and the number of each.
WRITER = """
store = ChatStore(Path(sys.argv[1]), print)
session, parent, i = store.create(folder="/"), None, 0
while True:
    text = f"message {i} " + "word " * (i % 500)
    parent = store.add(session, parent, Message("assistant" if i % 2 else "user", text)).id
    sys.stdout.write(f"{session} {i}\\n")  # one write
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
def test_database_files_are_private(path: Path) -> None:
    store = open_store(path)
    chat(store, "secret")
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert files == dict.fromkeys(("chats.db", "chats.db-wal", "chats.db-shm", "chats.db.lock"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    store.close()
    assert sorted(os.listdir(path.parent)) == ["chats.db", "chats.db.lock"]


@pytest.mark.usefixtures("_loose_umask")
def test_readable_database_is_made_private(path: Path) -> None:
    open_store(path).close()
    path.chmod(0o644)
    store = open_store(path)
    chat(store, "secret")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def add_migration(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, statements))


def columns(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [row[1] for row in connection.execute("PRAGMA table_info (sessions)")]
    connection.close()
    return found


def test_older_database_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(path)
    session = chat(store, "a", "b")
    store.close()
    add_migration(
        monkeypatch,
        "ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "UPDATE sessions SET pinned = length(title)",
    )
    for _ in range(2):
        store = open_store(path)
        assert texts(store, session) == ["a", "b"]
        chat(store, "c")
        store.close()
    assert columns(path)[-1] == "pinned"


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(path)
    session = chat(store, "a", "b")
    store.close()
    with monkeypatch.context() as patch:
        add_migration(patch, "ALTER TABLE sessions ADD COLUMN pinned INTEGER", "UPDATE absent SET x = 1")
        with pytest.raises(StoreError, match="no such table: absent"):
            open_store(path)
    assert "pinned" not in columns(path)
    store = open_store(path)
    assert texts(store, session) == ["a", "b"]


def test_newer_database_is_refused_and_unchanged(path: Path) -> None:
    store = open_store(path)
    chat(store, "a")
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_store(path)
    assert str(caught.value) == (
        f"{path}: schema version 7 is of a newer localdflash (this one reads up to 1);"
        " update localdflash, or move the file away"
    )
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["chats.db", "chats.db.lock"]


@pytest.mark.nightly
def test_stored_messages_survive_a_kill(path: Path) -> None:
    reported: dict[int, int] = {}  # by session, the last message that was reported
    rng = random.Random(3)
    for _ in range(12):
        with run_program(WRITER, path, -1) as writer:
            notices = [lines(writer).readline() for _ in range(rng.randrange(1, 120))]
            time.sleep(rng.random() * 0.003)  # during the next transaction
            writer.send_signal(signal.SIGKILL)
            notices += lines(writer).readlines()
            session, last = map(int, notices[-1].split())
            reported[session] = last
    store = open_store(path)
    for session, last in reported.items():
        numbers = [int(text.split()[1]) for text in texts(store, session)]
        assert numbers == list(range(len(numbers)))
        assert last <= numbers[-1] <= last + 1  # one may be stored but not reported
        assert session in {info.id for info in store.sessions(f"message {last}")}
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for index in database.SEARCH_INDEXES:
        connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
    connection.close()


PAGE = 4096


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def write_file(db: Path) -> int:
    """Write and close a file of about 70 pages; return the chat's id."""
    store = open_store(db)
    session = chat(store, *(f"message {i} " * 50 for i in range(150)))
    store.close()
    return session


def reopen(db: Path) -> tuple[ChatStore, list[str]]:
    notices: list[str] = []
    return open_store(db, notices.append), notices


def error_of(operation: Callable[[], object]) -> LocaldflashError | None:
    try:
        operation()
    except LocaldflashError as error:
        return error
    return None


def overwrite(db: Path, start: int, data: bytes) -> None:
    with db.open("r+b") as file:
        file.seek(start)
        file.write(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "text": lambda db: db.write_text("Dear diary,\n" * 100),
    "few bytes": lambda db: db.write_bytes(b"SQLite"),
    "half of it": lambda db: os.truncate(db, db.stat().st_size // 2 // PAGE * PAGE),
    "first page zeroed": lambda db: overwrite(db, 0, bytes(PAGE)),
    "tables damaged": lambda db: overwrite(db, 100, random.Random(1).randbytes(PAGE - 100)),
    "noise": lambda db: db.write_bytes(random.Random(2).randbytes(20 * PAGE)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_broken_file_is_set_aside_and_replaced(db: Path, name: str) -> None:
    write_file(db)
    DAMAGES[name](db)
    broken = db.read_bytes()
    store, notices = reopen(db)
    aside = db.with_name("chats.db.broken-1")
    assert notices == [f"{db}: was damaged; it is now {aside.name}, and a new one was created"]
    assert aside.read_bytes() == broken
    assert store.sessions() == []
    session = chat(store, "a", "b")
    store.close()
    store = open_store(db)
    assert texts(store, session) == ["a", "b"]


def test_log_is_recovered_and_pages_are_checked_after_a_crash(db: Path) -> None:
    write_file(db)
    store = open_store(db)
    session = store.sessions()[0].id
    store.add(session, None, Message("user", "in the log"))
    crashed = db.with_name("left.db")
    for end in ("", "-wal"):
        shutil.copyfile(f"{db}{end}", f"{crashed}{end}")
    store.close()
    recovering = db.with_name("whole.db")
    for end in ("", "-wal"):
        shutil.copyfile(f"{crashed}{end}", f"{recovering}{end}")
    recovered = open_store(recovering)
    assert texts(recovered, session) == ["in the log"]
    recovered.close()
    overwrite(crashed, 40 * PAGE, b"\xff" * PAGE * 5)
    store, notices = reopen(crashed)
    store.close()
    assert len(notices) == 1
    assert b"in the log" in crashed.with_name("left.db.broken-1").read_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_damage_found_later_raises_one_line_errors(db: Path, seed: int) -> None:
    """Damage pages of a cleanly closed file, which are not checked before they are read."""
    rng = random.Random(seed)
    session = write_file(db)
    pages = db.stat().st_size // PAGE
    for _ in range(3):
        page = rng.randrange(1, pages)
        overwrite(db, page * PAGE, rng.choice([bytes(PAGE), b"\xff" * PAGE, rng.randbytes(PAGE)]))
    store, _ = reopen(db)
    operations: list[Callable[[], object]] = [
        lambda: store.branch(session),
        lambda: store.sessions("message 7"),
        lambda: store.add(session, None, Message("user", "more")),
        lambda: store.fork(session, 1),
        lambda: store.delete(session),
    ]
    rng.shuffle(operations)
    errors = [error for operation in operations if (error := error_of(operation))]
    assert all(len(str(error).splitlines()) == 1 for error in errors)
    renewals = [str(error) for error in errors if isinstance(error, StoreLost) and "damaged" in str(error)]
    if renewals:
        assert renewals == [f"{db}: was damaged; it is now chats.db.broken-1, and a new one was created"]
        assert texts(store, chat(store, "a", "b")) == ["a", "b"]
        assert db.with_name("chats.db.broken-1").exists()


def test_damaged_file_in_use_is_not_replaced(db: Path) -> None:
    session = write_file(db)
    other = open_store(db)
    overwrite(db, 20 * PAGE, b"\xff" * PAGE * 20)
    store = open_store(db)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged; quit every other localdflash and start again"):
            store.branch(session)
    other.close()
    with pytest.raises(StoreLost):
        store.branch(session)
    assert store.sessions() == []


def test_damaged_search_index_is_rebuilt(db: Path) -> None:
    session = write_file(db)
    connection = sqlite3.connect(db)
    connection.execute("UPDATE texts_data SET block = x'00' WHERE id > 10")
    connection.commit()
    connection.close()
    store = open_store(db)
    with pytest.raises(StoreError, match=r"search index was damaged and was rebuilt; try again$"):
        store.sessions("message")
    assert [info.id for info in store.sessions("message 7")] == [session]
    assert len(store.branch(session)) == 150


@pytest.mark.parametrize(
    "damage",
    [
        "steps = '[[1'",
        "steps = '[1]'",
        "numbers = '[]'",
        "attachments = '{}'",
        """attachments = '[["file", "a", 1]]'""",
    ],
)
def test_damaged_message_does_not_affect_other_chats(db: Path, damage: str) -> None:
    store = open_store(db)
    good, bad, odd = chat(store, "good"), chat(store, "bad"), chat(store, "odd")
    store.close()
    connection = sqlite3.connect(db)
    connection.execute(f"UPDATE messages SET {damage} WHERE session = ?", (bad,))
    connection.execute("UPDATE messages SET text = CAST(x'6fff64' AS TEXT) WHERE session = ?", (odd,))
    connection.commit()
    connection.close()
    store = open_store(db)
    with pytest.raises(StoreError, match=r"^message 2 is damaged and cannot be read$"):
        store.branch(bad)
    assert (texts(store, good), texts(store, odd)) == (["good"], ["o\ufffdd"])
    assert len(store.sessions()) == 3


def test_full_disk_loses_no_stored_message(db: Path) -> None:
    store = ChatStore(db, print)
    database = store._database
    session = chat(store, "a", "b")
    last = store.branch(session)[-1].id
    with database.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 5}").fetchall()
    with pytest.raises(StoreError, match=r"chats\.db: the disk is full; free some space$"):
        store.add(session, last, Message("user", "x" * 100_000))
    assert texts(store, session) == ["a", "b"]
    store.add(session, last, Message("user", "c"))
    with database.reading() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages + 500}").fetchall()
    store.add(session, last, Message("user", "x" * 100_000))
    assert texts(store, session) == ["a", "b", "x" * 100_000]


def test_impossible_database_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.db").mkdir()
    os.mkfifo(tmp_path / "pipe.db")
    for place in ("file/chats.db", "file/below/chats.db", "folder.db", "pipe.db", "x" * 300 + ".db"):
        with pytest.raises(StoreError) as caught:
            open_store(tmp_path / place)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("seed", range(2))
def test_deleted_chat_leaves_no_text_in_the_files(db: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = open_store(db)
    words = {"kept": "heron", "gone": "zyxwvut"}
    sessions = {name: store.create(folder=f"/{word}") for name, word in words.items()}
    parents: dict[str, int | None] = dict.fromkeys(words)
    for i in range(300):
        name = rng.choice(list(words))
        text = f"{words[name]}{i} " * rng.choice([1, 30, 2000])
        message = store.add(sessions[name], parents[name], Message("user", text))
        parents[name] = message.id
        if rng.random() < 0.3:
            store.update(Message("user", text + text, id=message.id))
    store.rename(sessions["gone"], "zyxwvut at last")
    before = db.read_bytes() + db.with_name("chats.db-wal").read_bytes()
    assert b"zyxwvut" in before
    store.delete(sessions["gone"])
    crashed = b"".join(file.read_bytes() for file in db.parent.iterdir())
    assert b"zyxwvut" not in crashed
    assert b"heron" in crashed
