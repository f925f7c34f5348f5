"""The file of the chats: private, migrated, shared, set aside if it is damaged."""

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
from tests.chat.stored import chat, lines, opened, program, texts

# Writes without end, and says what is stored: session, message, text.
WRITES = """
store = ChatStore(Path(sys.argv[1]), print)
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
        with pytest.raises(StoreError, match="no such table: absent"):
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
    with pytest.raises(StoreError) as caught:
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


PAGE = 4096


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def filled(db: Path) -> int:
    """A closed file of about 70 pages."""
    store = opened(db)
    session = chat(store, *(f"message {i} " * 50 for i in range(150)))
    store.close()
    return session


def reopened(db: Path) -> tuple[ChatStore, list[str]]:
    said: list[str] = []
    return opened(db, said.append), said


def refusal(use: Callable[[], object]) -> LocaldflashError | None:
    try:
        use()
    except LocaldflashError as error:
        return error
    return None


def overwritten(db: Path, start: int, data: bytes) -> None:
    with db.open("r+b") as file:
        file.seek(start)
        file.write(data)


BREAKS: dict[str, Callable[[Path], object]] = {
    "text": lambda db: db.write_text("Dear diary,\n" * 100),
    "few bytes": lambda db: db.write_bytes(b"SQLite"),
    "half of it": lambda db: os.truncate(db, db.stat().st_size // 2 // PAGE * PAGE),
    "first page zeroed": lambda db: overwritten(db, 0, bytes(PAGE)),
    "tables damaged": lambda db: overwritten(db, 100, random.Random(1).randbytes(PAGE - 100)),
    "noise": lambda db: db.write_bytes(random.Random(2).randbytes(20 * PAGE)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_file_is_set_aside_and_a_new_one_begun(db: Path, name: str) -> None:
    filled(db)
    BREAKS[name](db)
    broken = db.read_bytes()
    store, said = reopened(db)
    aside = db.with_name("chats.db.broken-1")
    assert said == [f"{db}: was damaged; it is now {aside.name}, and a new one begins"]
    assert aside.read_bytes() == broken
    assert store.sessions() == []
    session = chat(store, "a", "b")
    store.close()
    store = opened(db)
    assert texts(store, session) == ["a", "b"]


def test_after_a_crash_the_log_is_read_and_every_page_is_checked(db: Path) -> None:
    filled(db)
    store = opened(db)
    session = store.sessions()[0].id
    store.add(session, None, Message("user", "in the log"))
    left = db.with_name("left.db")
    for end in ("", "-wal"):
        shutil.copyfile(f"{db}{end}", f"{left}{end}")
    store.close()
    whole = db.with_name("whole.db")
    for end in ("", "-wal"):
        shutil.copyfile(f"{left}{end}", f"{whole}{end}")
    recovered = opened(whole)
    assert texts(recovered, session) == ["in the log"]
    recovered.close()
    overwritten(left, 40 * PAGE, b"\xff" * PAGE * 5)
    store, said = reopened(left)
    store.close()
    assert len(said) == 1
    assert b"in the log" in left.with_name("left.db.broken-1").read_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_damage_that_shows_later_costs_no_more_than_one_error(db: Path, seed: int) -> None:
    """Some pages of a file that was closed well: nothing looks at them until they are needed."""
    rng = random.Random(seed)
    session = filled(db)
    pages = db.stat().st_size // PAGE
    for _ in range(3):
        page = rng.randrange(1, pages)
        overwritten(db, page * PAGE, rng.choice([bytes(PAGE), b"\xff" * PAGE, rng.randbytes(PAGE)]))
    store, _ = reopened(db)
    uses: list[Callable[[], object]] = [
        lambda: store.path(session),
        lambda: store.sessions("message 7"),
        lambda: store.add(session, None, Message("user", "more")),
        lambda: store.fork(session, 1),
        lambda: store.delete(session),
    ]
    rng.shuffle(uses)
    errors = [error for use in uses if (error := refusal(use))]
    assert all(len(str(error).splitlines()) == 1 for error in errors)
    renewals = [str(error) for error in errors if isinstance(error, StoreLost) and "damaged" in str(error)]
    if renewals:
        assert renewals == [f"{db}: was damaged; it is now chats.db.broken-1, and a new one begins"]
        assert texts(store, chat(store, "a", "b")) == ["a", "b"]
        assert db.with_name("chats.db.broken-1").exists()


def test_a_file_that_another_store_has_open_is_not_taken_from_it(db: Path) -> None:
    session = filled(db)
    other = opened(db)
    overwritten(db, 20 * PAGE, b"\xff" * PAGE * 20)
    store = opened(db)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged; quit every other localdflash and start again"):
            store.path(session)
    other.close()
    with pytest.raises(StoreLost):
        store.path(session)
    assert store.sessions() == []


def test_a_damaged_search_index_is_made_anew(db: Path) -> None:
    session = filled(db)
    connection = sqlite3.connect(db)
    connection.execute("UPDATE texts_data SET block = x'00' WHERE id > 10")
    connection.commit()
    connection.close()
    store = opened(db)
    with pytest.raises(StoreError, match=r"search index was damaged and has been made anew; try again$"):
        store.sessions("message")
    assert [info.id for info in store.sessions("message 7")] == [session]
    assert len(store.path(session)) == 150


def test_one_damaged_message_does_not_take_the_other_chats_with_it(db: Path) -> None:
    store = opened(db)
    good, bad, odd = chat(store, "good"), chat(store, "bad"), chat(store, "odd")
    store.close()
    connection = sqlite3.connect(db)
    connection.execute("UPDATE messages SET steps = '[[1' WHERE session = ?", (bad,))
    connection.execute("UPDATE messages SET text = CAST(x'6fff64' AS TEXT) WHERE session = ?", (odd,))
    connection.commit()
    connection.close()
    store = opened(db)
    with pytest.raises(StoreError, match=r"^message 2 is damaged and cannot be read$"):
        store.path(bad)
    assert (texts(store, good), texts(store, odd)) == (["good"], ["o\ufffdd"])
    assert len(store.sessions()) == 3


def test_a_full_disk_loses_nothing_that_was_stored(db: Path) -> None:
    store = ChatStore(db, print)
    database = store._database
    session = chat(store, "a", "b")
    last = store.path(session)[-1].id
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


# No file may grow beyond a limit, which is then lifted: as if somebody had made room.
FULL = """
import resource
store = ChatStore(Path(sys.argv[1]), print)
session, parent = store.create(folder="/"), None
resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, -1))
try:
    for i in range(1000):
        parent = store.add(session, parent, Message("user", f"{i} " + "word " * 200)).id
except StoreError as error:
    print(error)
print([message.text.split()[0] for message in store.path(session)] == [str(n) for n in range(i)], i > 5)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
store.add(session, parent, Message("user", f"{i} again"))
store.close()
"""


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.db").mkdir()
    os.mkfifo(tmp_path / "pipe.db")
    for place in ("file/chats.db", "file/below/chats.db", "folder.db", "pipe.db", "x" * 300 + ".db"):
        with pytest.raises(StoreError) as caught:
            opened(tmp_path / place)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("seed", range(2))
def test_nothing_of_a_deleted_chat_stays_in_the_file(db: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = opened(db)
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
    left = b"".join(file.read_bytes() for file in db.parent.iterdir())
    assert b"zyxwvut" not in left
    assert b"heron" in left
