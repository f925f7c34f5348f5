"""Chats in a store: round trips, branches, lists and search."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.base.errors import StoreError, UsageError
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.store import ChatStore
from tests.chat.stored import chat, open_store

ANY_TEXT = st.text(st.characters(), max_size=60)  # lone surrogates and NUL too
NUMBERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
STEPS = st.builds(
    StepRecord,
    st.sampled_from(["", "dflash", "lookup"]),
    st.integers(0, 64),
    st.integers(0, 64),
    st.lists(st.integers(0, 200), max_size=8).map(tuple),
    st.floats(0, 1e6),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant"]),
    ANY_TEXT,
    st.lists(st.builds(Attachment, st.sampled_from(["file", "symbol", "paste"]), ANY_TEXT, ANY_TEXT), max_size=2).map(
        tuple
    ),
    st.sampled_from(["", "stop", "length", "context", "cancelled", "gone"]),
    st.dictionaries(ANY_TEXT, NUMBERS, max_size=3),
    st.lists(STEPS, max_size=3).map(tuple),
)


@pytest.fixture
def store() -> ChatStore:
    return open_store(None)


@given(MESSAGES, MESSAGES, ANY_TEXT, ANY_TEXT, ANY_TEXT)
@settings(max_examples=30)
def test_any_text_round_trips(first: Message, second: Message, folder: str, model: str, system: str) -> None:
    store = open_store(None)
    session = store.create(folder=folder, model=model, system=system)
    first = store.add(session, None, first)
    store.update(second := replace(second, role=first.role, id=first.id))
    assert store.branch(session) == [second]
    info = store.info(session)
    assert (info.folder, info.model, info.system) == (folder, model, system)
    store.sessions(second.text)
    store.delete(session)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n\n  ```\n\tdef  f():\n```", "def f():"),
        ("word " * 40, "word word word word word word word word word word word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("?!", ""),
        ("", "notes.md"),
    ],
)
def test_title_comes_from_the_first_message(store: ChatStore, text: str, title: str) -> None:
    session = store.create(folder="/")
    attachments = () if text == "?!" else (Attachment("file", "notes.md", "x"),)
    store.add(session, None, Message("user", text, attachments))
    assert store.info(session).title == title


@pytest.mark.parametrize(
    "method",
    [
        ChatStore.info,
        ChatStore.branch,
        ChatStore.delete,
        lambda store, session: store.rename(session, "x"),
        lambda store, session: store.set_system(session, "x"),
        lambda store, session: store.fork(session, 1),
        lambda store, session: store.set_head(session, 1),
    ],
)
def test_unknown_chat_is_refused(store: ChatStore, method: Callable[[ChatStore, int], object]) -> None:
    chat(store, "a")
    for session in (0, 2, -1, 2**63):
        with pytest.raises(UsageError, match=f"^there is no chat {session}$"):
            method(store, session)


def test_messages_of_a_deleted_chat_are_not_stored(store: ChatStore) -> None:
    session = chat(store, "a")
    message = store.branch(session)[0]
    store.delete(session)
    chat(store, "b")
    with pytest.raises(StoreError, match="was deleted"):
        store.add(session, message.id, Message("user", "c"))
    with pytest.raises(StoreError, match="was deleted"):
        store.update(message)
    assert [info.excerpt for info in store.sessions()] == ["b"]


TEXTS = {
    "sort": "How do I sort a list in Rust?\n```rust\nlist.sort_unstable();\n```",
    "error": "error[E0502]: cannot borrow `*self` as mutable -> why? Naïve: 100%",
    "chinese": "为什么这个函数这么慢？ Quicksort 排序",
    "odd": "before\x00after\udc80 ünïcödé “quotes” \"double\" 'single' AND OR NOT NEAR(a b) text:x ^start star*",
}


@pytest.fixture(scope="module")
def searched() -> Iterator[ChatStore]:
    searched = ChatStore(None, print)
    for name, text in TEXTS.items():
        searched.rename(chat(searched, text, "An answer."), f"title of {name}")
    yield searched
    searched.close()


def found(searched: ChatStore, words: str) -> set[str]:
    return {info.title.removeprefix("title of ") for info in searched.sessions(words)}


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
def test_search_finds_words(searched: ChatStore, words: str, names: set[str]) -> None:
    assert found(searched, words) == names


def test_search_follows_changes() -> None:
    searched = open_store(None)
    session = chat(searched, "Question", "first")
    answer = searched.branch(session)[-1]
    searched.update(Message("assistant", "second", id=answer.id))
    assert not searched.sessions("first")
    assert searched.sessions("second")
    searched.rename(session, "Third")
    assert [info.title for info in searched.sessions("third")] == ["Third"]
    searched.delete(searched.fork(session, searched.branch(session)[-1].id))
    assert len(searched.sessions("second")) == 1
