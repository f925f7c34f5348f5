"""History of sent messages: its order and its file, which may be broken, unwritable or shared."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from localdflash.tui import history as module
from localdflash.tui.history import History, history_file


@pytest.fixture
def path() -> Path:
    return history_file()


def add_messages(path: Path, *texts: str) -> None:
    history = History(path)
    for text in texts:
        history.add(text)
    history.close()


def all_of(history: History) -> list[str]:
    """Return all messages, newest first."""
    found, current = [], ""
    while (text := history.older(current)) is not None:
        found.append(text)
        current = text
    return found


def test_history_is_kept_between_chats(path: Path) -> None:
    add_messages(path, "one", "two\nlines", "größer 👍")
    assert all_of(History(path)) == ["größer 👍", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes().isascii()


def test_older_and_newer_keep_edits() -> None:
    history = History(None)
    assert (history.older("draft"), history.newer("draft")) == (None, None)
    for text in ("one", "two"):
        history.add(text)
    assert history.older("draft") == "two"
    assert history.older("two, changed") == "one"
    assert history.older("one") is None
    assert history.newer("one") == "two, changed"
    assert history.newer("two") == "draft"
    assert history.newer("draft") is None
    assert history.older("two") == "one"  # "two" is already shown


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"[" * 100_000, b'"\\ud800'])
def test_broken_lines_are_skipped(path: Path, broken: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'"one"\n' + broken + b"\n" + b'"two"')
    notices: list[str] = []
    history = History(path, notices.append)
    history.add("three")
    history.close()
    assert all_of(History(path)) == ["three", "two", "one"]
    assert notices == []


def test_loaded_messages_are_sanitised(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps("a\x1b[2J\u202eb") + "\n")
    assert History(path).older("") == "a␛[2J⟦U+202E⟧b"


def test_two_chats_append_at_once(path: Path) -> None:
    def chat(name: str) -> None:
        add_messages(path, *(f"{name} {number}" for number in range(40)))

    chats = [threading.Thread(target=chat, args=(name,)) for name in "ab"]
    for one in chats:
        one.start()
    for one in chats:
        one.join()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(lines) == sorted(f"{name} {number}" for name in "ab" for number in range(40))


@pytest.mark.parametrize("cause", ["a link", "no folder", "a full disk"])
def test_write_failure_is_reported_once(
    cause: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "target"
    target.write_text('"other"\n')
    if cause == "no folder":
        path = target / "chat-history"
    elif cause == "a link":
        path.parent.mkdir(parents=True)
        path.symlink_to(target)
    else:
        monkeypatch.setattr(module, "_append", full)
    notices: list[str] = []
    history = History(path, notices.append)
    for text in ("one", "two"):
        history.add(text)
    history.close()
    assert target.read_text() == '"other"\n'
    assert all_of(history)[:2] == ["two", "one"]
    assert len(notices) == 1
    if cause == "a full disk":
        assert notices == [f"{path}: No space left on device: messages are not remembered after this chat"]


def test_dropping_old_messages_is_atomic(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 2)
    monkeypatch.setattr(module, "_MAX_LINES", 3)
    add_messages(path, "1", "2", "3")

    def fail(*_: object) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "replace", fail)
    add_messages(path, "4")
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == ["1", "2", "3", "4"]
    assert sorted(one.name for one in path.parent.iterdir()) == ["chat-history", "chat-history.lock"]
