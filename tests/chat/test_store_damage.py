"""Files that are broken, disks that are full, folders that cannot be written: one line, and nothing lost."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.base.errors import LocaldflashError, StoreFailed, StoreLost
from localdflash.chat.database import Database
from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from tests.chat.stored import chat, opened, texts

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def filled(path: Path) -> int:
    """A closed file of about 70 pages."""
    store = opened(path)
    session = chat(store, *(f"message {i} " * 50 for i in range(150)))
    store.close()
    return session


def reopened(path: Path) -> tuple[ChatStore, list[str]]:
    said: list[str] = []
    return opened(path, said.append), said


def refusal(use: Callable[[], object]) -> LocaldflashError | None:
    try:
        use()
    except LocaldflashError as error:
        return error
    return None


def overwritten(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


BREAKS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("Dear diary,\n" * 100),
    "few bytes": lambda path: path.write_bytes(b"SQLite"),
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE),
    "first page zeroed": lambda path: overwritten(path, 0, bytes(PAGE)),
    "tables damaged": lambda path: overwritten(path, 100, random.Random(1).randbytes(PAGE - 100)),
    "noise": lambda path: path.write_bytes(random.Random(2).randbytes(20 * PAGE)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_file_is_set_aside_and_a_new_one_begun(path: Path, name: str) -> None:
    filled(path)
    BREAKS[name](path)
    broken = path.read_bytes()
    store, said = reopened(path)
    aside = path.with_name("chats.db.broken-1")
    assert said == [f"{path}: was damaged; it is now {aside.name}, and a new one begins"]
    assert aside.read_bytes() == broken
    assert store.sessions() == []
    session = chat(store, "a", "b")
    store.close()
    store = opened(path)
    assert texts(store, session) == ["a", "b"]


def test_after_a_crash_the_log_is_read_and_every_page_is_checked(path: Path) -> None:
    filled(path)
    store = opened(path)
    session = store.sessions()[0].id
    store.add(session, None, Message("user", "in the log"))
    left = path.with_name("left.db")
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", f"{left}{end}")
    store.close()
    whole = path.with_name("whole.db")
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
def test_damage_that_shows_later_costs_no_more_than_one_error(path: Path, seed: int) -> None:
    """Some pages of a file that was closed well: nothing looks at them until they are needed."""
    rng = random.Random(seed)
    session = filled(path)
    pages = path.stat().st_size // PAGE
    for _ in range(3):
        page = rng.randrange(1, pages)
        overwritten(path, page * PAGE, rng.choice([bytes(PAGE), b"\xff" * PAGE, rng.randbytes(PAGE)]))
    store, _ = reopened(path)
    uses: list[Callable[[], object]] = [
        lambda: store.path(session),
        lambda: store.sessions("message 7"),
        lambda: store.add(session, None, Message("user", "more")),
        lambda: store.fork(session, None),
        lambda: store.delete(session),
    ]
    rng.shuffle(uses)
    errors = [error for use in uses if (error := refusal(use))]
    assert all(len(str(error).splitlines()) == 1 for error in errors)
    renewals = [str(error) for error in errors if isinstance(error, StoreLost) and "damaged" in str(error)]
    if renewals:
        assert renewals == [f"{path}: was damaged; it is now chats.db.broken-1, and a new one begins"]
        assert texts(store, chat(store, "a", "b")) == ["a", "b"]
        assert path.with_name("chats.db.broken-1").exists()


def test_a_file_that_another_store_has_open_is_not_taken_from_it(path: Path) -> None:
    session = filled(path)
    other = opened(path)
    overwritten(path, 20 * PAGE, b"\xff" * PAGE * 20)
    store = opened(path)
    for _ in range(2):
        with pytest.raises(StoreFailed, match="damaged; quit every other localdflash and start again"):
            store.path(session)
    other.close()
    with pytest.raises(StoreLost):
        store.path(session)
    assert store.sessions() == []


def test_a_broken_file_that_others_have_open_stays_when_it_is_opened(path: Path) -> None:
    filled(path)
    other = opened(path)
    overwritten(path, 0, b"\xff" * PAGE)
    with pytest.raises(StoreFailed, match="damaged; quit every other localdflash and start again"):
        reopened(path)
    assert not list(path.parent.glob("*.broken-*"))
    other.close()
    assert len(reopened(path)[1]) == 1


def test_a_damaged_search_index_is_made_anew(path: Path) -> None:
    session = filled(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE texts_data SET block = x'00' WHERE id > 10")
    connection.commit()
    connection.close()
    store = opened(path)
    with pytest.raises(StoreFailed, match=r"search index was damaged and has been made anew; try again$"):
        store.sessions("message")
    assert [info.id for info in store.sessions("message 7")] == [session]
    assert len(store.path(session)) == 150


def test_one_damaged_message_does_not_take_the_other_chats_with_it(path: Path) -> None:
    store = opened(path)
    good, bad, odd = chat(store, "good"), chat(store, "bad"), chat(store, "odd")
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE messages SET steps = '[[1' WHERE session = ?", (bad,))
    connection.execute("UPDATE messages SET text = CAST(x'6fff64' AS TEXT) WHERE session = ?", (odd,))
    connection.commit()
    connection.close()
    store = opened(path)
    with pytest.raises(StoreFailed, match=r"^message 2 is damaged and cannot be read$"):
        store.path(bad)
    assert (texts(store, good), texts(store, odd)) == (["good"], ["o\ufffdd"])
    assert len(store.sessions()) == 3


def test_a_full_disk_loses_nothing_that_was_stored(path: Path) -> None:
    database = Database(path, print)
    store = ChatStore(database)
    session = chat(store, "a", "b")
    last = store.path(session)[-1].id
    with database.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 5}").fetchall()
    with pytest.raises(StoreFailed, match=r"chats\.db: the disk is full; free some space$"):
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
store = ChatStore.open(Path(sys.argv[1]), print)
session, parent = store.create(folder="/"), None
resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, -1))
try:
    for i in range(1000):
        parent = store.add(session, parent, Message("user", f"{i} " + "word " * 200)).id
except StoreFailed as error:
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
        with pytest.raises(StoreFailed) as caught:
            opened(tmp_path / place)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("seed", range(2))
def test_nothing_of_a_deleted_chat_stays_in_the_file(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = opened(path)
    words = {"kept": "heron", "gone": "zyxwvut"}
    sessions = {name: store.create(folder=f"/{word}", title=f"on {word}") for name, word in words.items()}
    parents: dict[str, int | None] = dict.fromkeys(words)
    for i in range(300):
        name = rng.choice(list(words))
        text = f"{words[name]}{i} " * rng.choice([1, 30, 2000])
        message = store.add(sessions[name], parents[name], Message("user", text))
        parents[name] = message.id
        if rng.random() < 0.3:
            store.update(Message("user", text + text, id=message.id))
    store.rename(sessions["gone"], "zyxwvut at last")
    before = path.read_bytes() + path.with_name("chats.db-wal").read_bytes()
    assert b"zyxwvut" in before
    store.delete(sessions["gone"])
    left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"zyxwvut" not in left
    assert b"heron" in left
