"""Words are found wherever they stand, and whatever is typed is no more than words."""

import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        ("SORT rust", {"sort"}),
        ("sort python", set()),
        ("so rust", set()),
        ("sort_unstable", {"sort"}),
        ("E0502", {"error"}),
        ("naive", {"error"}),
        ("100%", {"error"}),
        ("%", {"error"}),
        ("函数", {"chinese"}),
        ("函数 quicksort", {"chinese"}),
        ("before\x00after", {"odd"}),
        ("title", set(TEXTS)),
        ("sort answer", set()),
        ("", set(TEXTS)),
    ],
)
def test_words_are_found(store: ChatStore, words: str, names: set[str]) -> None:
    assert found(store, words) == names


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


def test_found_chats_come_newest_first_and_no_more_than_asked_for() -> None:
    store = opened(None)
    sessions = [chat(store, "needle", "needle") for _ in range(5)]
    assert [info.id for info in store.sessions("needle")] == sessions[::-1]
    store.add(sessions[0], None, Message("user", "hay"))
    assert [info.id for info in store.sessions("needle", limit=9)] == [sessions[0], *sessions[:0:-1]]
    assert len(store.sessions("needle", limit=2)) == 2
