"""Driver of terminals: keys, pastes and any bytes reach the app at once."""

import asyncio
import os
import pty
import sys
import time
import tty
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from textual import events
from textual.app import App
from textual.constants import ESCAPE_DELAY
from textual.message import Message

from localdflash.tui.driver import Driver
from localdflash.tui.pastes import Paste

pytestmark = pytest.mark.system


class Typed:
    """A driver that reads from a terminal; `write` types on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terminal: int, driver: Driver, thread: Thread) -> None:
        self._terminal, self.driver, self.thread = terminal, driver, thread
        self._events = SimpleQueue[Message]()
        monkeypatch.setattr(driver, "process_message", self._events.put)
        thread.start()

    def write(self, data: bytes) -> None:
        os.write(self._terminal, data)

    def next(self) -> Message:
        return self._events.get(timeout=10)

    def leave(self) -> float:
        """Seconds until the thread has ended."""
        begun = time.perf_counter()
        self.driver.exit_event.set()
        self.thread.join(10)
        return time.perf_counter() - begun


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as stdin:
        tty.setraw(theirs)
        monkeypatch.setattr(sys, "__stdin__", stdin)
        driver = asyncio.run(_driver())
        one = Typed(monkeypatch, ours, driver, Thread(target=driver.run_input_thread, daemon=True))
        yield one
        one.leave()
        driver.close()
    for end in (ours, theirs):
        os.close(end)


async def _driver() -> Driver:
    return Driver(App[Any]())


def test_keys_and_pastes(typed: Typed) -> None:
    typed.write("aé\x1b[A".encode())
    keys = [typed.next() for _ in range(3)]
    assert [key.key for key in keys if isinstance(key, events.Key)] == ["a", "é", "up"]
    typed.write(b"\x1b[200~one\x11two\x1b[201~")
    paste = typed.next()
    assert isinstance(paste, Paste)
    assert paste.raw == "one\x11two"


def test_a_lone_escape_waits_for_its_delay_alone(typed: Typed) -> None:
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        typed.write(b"\x1b")
        key = typed.next()
        took.append(time.perf_counter() - begun)
        assert isinstance(key, events.Key)
        assert key.key == "escape"
    assert min(took) < ESCAPE_DELAY + 0.03


def test_bytes_that_are_no_utf_8_end_nothing(typed: Typed) -> None:
    typed.write(b"\xff")
    assert isinstance(key := typed.next(), events.Key)
    assert key.character == "\N{REPLACEMENT CHARACTER}"
    typed.write(b"\xc3")
    typed.write(b"\xa9x")
    assert [key.character for key in (typed.next(), typed.next()) if isinstance(key, events.Key)] == ["é", "x"]


def test_offload_can_be_done_again(typed: Typed) -> None:
    typed.write(b"a")
    typed.next()
    assert typed.leave() < 1
    assert not typed.thread.is_alive()
    typed.driver.exit_event.clear()
    typed.thread = Thread(target=typed.driver.run_input_thread, daemon=True)  # as after Ctrl+Z
    typed.thread.start()
    typed.write(b"b")
    assert isinstance(key := typed.next(), events.Key)
    assert key.key == "b"
