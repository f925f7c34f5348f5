"""Words are found wherever they stand, and whatever is typed is no more than words."""

import random
import time
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localdflash.chat import message_rows
from localdflash.chat.database import Database
from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from tests.chat.stored import chat, opened

TEXTS = {
    "sort": "How do I sort a list in Rust?\n```rust\nlist.sort_unstable();\n```",
    "error": "error[E0502]: cannot borrow `*self` as mutable -> why? Naïve: 100%",
    "chinese": "为什么这个函数这么慢？ Quicksort 排序",
    "odd": "before\x00after\udc80 ünïcödé “quotes” \"double\" 'single' AND OR NOT NEAR(a b) text:x ^start star*",
}


@pytest.fixture(scope="module")
def store() -> Iterator[ChatStore]:
    store = ChatStore.open(None, print)
    for name, text in TEXTS.items():
        store.rename(chat(store, text, "An answer."), f"title of {name}")
    yield store
    store.close()


def found(store: ChatStore, words: str) -> set[str]:
    return {info.title.removeprefix("title of ") for info in store.sessions(words)}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("sort", {"sort"}),
        ("SORT rust", {"sort"}),
        ("sort python", set()),
        ("so", {"sort"}),
        ("so rust", set()),
        ("so ;", set()),
        ("sort_unstable", {"sort"}),
        ("unstable_sort", set()),
        ("E0502", {"error"}),
        ("naive", {"error"}),
        ("->", {"error"}),
        ("borrow ->", {"error"}),
        ("100%", {"error"}),
        ("%", {"error"}),
        ("函数", {"chinese"}),
        ("函数 quicksort", {"chinese"}),
        ("函数 sort", set()),
        ("before after", {"odd"}),
        ("before\x00after", {"odd"}),
        ("error", {"error"}),
        ("title", set(TEXTS)),
        ("sort answer", set()),
        ("\x00", set()),
        ("", set(TEXTS)),
    ],
)
def test_words_are_found(store: ChatStore, words: str, names: set[str]) -> None:
    assert found(store, words) == names


@given(st.text(st.characters(), max_size=30) | st.text("\"'*^():{}-+ ANDORTEa\x00\ud800", max_size=30))
@example('"); DROP TABLE messages; --')
@example("NEAR(a b, 2)")
@example("rowid:1")
@example("a" * 100_000)
@example(" ".join(f"w{i}" for i in range(5000)))
@settings(max_examples=50)
def test_no_words_are_an_error(store: ChatStore, words: str) -> None:
    assert isinstance(store.sessions(words), list)
    assert len(store.sessions()) == len(TEXTS)


@given(st.text("abcé_. \n", max_size=40), st.data())
@settings(max_examples=30)
def test_every_word_of_a_text_is_found(text: str, data: st.DataObject) -> None:
    store = opened(None)
    session = chat(store, text, "")
    for word in text.split():
        part = data.draw(st.integers(1, len(word)))
        if any(map(str.isalnum, word[:part])) or not any(map(str.isalnum, word)):
            assert [info.id for info in store.sessions(unicodedata.normalize("NFC", word[:part]).upper())] == [session]


def test_the_excerpt_shows_what_was_found() -> None:
    store = opened(None)
    session = chat(store, "word " * 1000 + "needle\n\n  in\tthe haystack " + "more " * 1000, "The end.")
    (info,) = store.sessions("needl")
    assert info.excerpt.startswith("…")
    assert "word needle in the haystack more" in info.excerpt
    assert len(info.excerpt) <= 120
    (info,) = store.sessions("WORD")
    assert info.excerpt.startswith("word word")
    store.rename(session, "Farm")
    (info,) = store.sessions("farm")
    assert info.excerpt == "The end."


def test_the_newest_message_that_was_found_is_shown() -> None:
    store = opened(None)
    chat(store, "needle one", "needle two", "hay")
    assert [info.excerpt for info in store.sessions("needle")] == ["needle two"]


def test_changed_texts_and_titles_are_found_as_they_are_now() -> None:
    store = opened(None)
    session = chat(store, "Question", "first")
    answer = store.path(session)[-1]
    store.update(Message("assistant", "second", id=answer.id))
    assert not store.sessions("first")
    assert store.sessions("second")
    store.rename(session, "Third")
    assert [info.title for info in store.sessions("third")] == ["Third"]
    store.delete(store.fork(session, None))
    assert len(store.sessions("second")) == 1


@pytest.mark.nightly
def test_a_hundred_thousand_messages_are_searched_at_once() -> None:
    """Words that are everywhere, beginnings of words, several words, none: the best of three, for a busy machine."""
    database = Database(None, print)
    store, rng = ChatStore(database), random.Random(5)
    common = [f"{a}{b}" for a in "abcdefgh" for b in ("", "e", "er", "ing", "tion", "_list", "s")]
    rare = [f"{word}{i}" for i in range(300) for word in common]
    columns = ", ".join(message_rows.COLUMNS)
    insert = f"INSERT INTO messages (session, depth, {columns}) VALUES (?, 1, {message_rows.PLACES})"
    sessions = [store.create(folder="/") for _ in range(1000)]
    with database.writing() as connection:
        for i in range(100_000):
            text = " ".join([*rng.choices(common, k=20), *rng.choices(rare, k=10)])
            connection.execute(insert, (sessions[i // 100], *message_rows.to_row(Message("user", text))))
        connection.execute("UPDATE sessions SET head = id * 100")
    for words in ("e", "a", "b", "aing a", "ation ber", "ation1", "cs12 d", "h_list", "hing299", "nowhere", ""):
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            found = store.sessions(words)
            seconds.append(time.perf_counter() - begun)
        assert min(seconds) < 0.3, words  # 0.05 on a quiet machine
        assert bool(found) == (words != "nowhere")


def test_found_chats_come_newest_first_and_no_more_than_asked_for() -> None:
    store = opened(None)
    sessions = [chat(store, "needle", "needle") for _ in range(5)]
    assert [info.id for info in store.sessions("needle")] == sessions[::-1]
    store.add(sessions[0], None, Message("user", "hay"))
    assert [info.id for info in store.sessions("needle", limit=9)] == [sessions[0], *sessions[:0:-1]]
    assert len(store.sessions("needle", limit=2)) == 2
