"""History of sent messages: its order, its file, and a file that is broken, full or shared."""

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


def sent(path: Path, *texts: str) -> None:
    history = History(path)
    for text in texts:
        history.add(text)
    history.close()


def all_of(history: History) -> list[str]:
    """Newest first."""
    found, current = [], ""
    while (text := history.older(current)) is not None:
        found.append(text)
        current = text
    return found


def test_kept_between_chats(path: Path) -> None:
    sent(path, "one", "two\nlines", "größer 👍")
    assert all_of(History(path)) == ["größer 👍", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes().isascii()


def test_there_and_back() -> None:
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
    assert history.older("two") == "one"  # it stands there already


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"[" * 100_000, b'"\\ud800'])
def test_broken_lines_count_as_none(path: Path, broken: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'"one"\n' + broken + b"\n" + b'"two"')
    told: list[str] = []
    history = History(path, told.append)
    history.add("three")
    history.close()
    assert all_of(History(path)) == ["three", "two", "one"]
    assert told == []


def test_what_comes_from_the_file_is_safe_to_show(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps("a\x1b[2J\u202eb") + "\n")
    assert History(path).older("") == "a␛[2J⟦U+202E⟧b"


def test_two_chats_at_once(path: Path) -> None:
    def chat(name: str) -> None:
        sent(path, *(f"{name} {number}" for number in range(40)))

    chats = [threading.Thread(target=chat, args=(name,)) for name in "ab"]
    for one in chats:
        one.start()
    for one in chats:
        one.join()
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(kept) == sorted(f"{name} {number}" for name in "ab" for number in range(40))


@pytest.mark.parametrize("trouble", ["a link", "no folder", "a full disk"])
def test_what_cannot_be_written_is_told_once_and_remembered_in_this_chat(
    trouble: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "target"
    target.write_text('"other"\n')
    if trouble == "no folder":
        path = target / "chat-history"
    elif trouble == "a link":
        path.parent.mkdir(parents=True)
        path.symlink_to(target)
    else:
        monkeypatch.setattr(module, "_append", full)
    told: list[str] = []
    history = History(path, told.append)
    for text in ("one", "two"):
        history.add(text)
    history.close()
    assert target.read_text() == '"other"\n'
    assert all_of(history)[:2] == ["two", "one"]
    assert len(told) == 1
    if trouble == "a full disk":
        assert told == [f"{path}: No space left on device: messages are not remembered after this chat"]


def test_dropping_old_ones_is_all_or_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 2)
    monkeypatch.setattr(module, "_MAX_LINES", 3)
    sent(path, "1", "2", "3")

    def fail(*_: object) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "replace", fail)
    sent(path, "4")
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == ["1", "2", "3", "4"]
    assert sorted(one.name for one in path.parent.iterdir()) == ["chat-history", "chat-history.lock"]
