"""Terminal driver: keys, pastes and invalid bytes reach the app at once."""

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


class DriverTerminal:
    """Driver that reads from a pseudo-terminal; `write` types into it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terminal: int, driver: Driver, thread: Thread) -> None:
        self._terminal, self.driver, self.thread = terminal, driver, thread
        self._events = SimpleQueue[Message]()
        monkeypatch.setattr(driver, "process_message", self._events.put)
        thread.start()

    def write(self, data: bytes) -> None:
        os.write(self._terminal, data)

    def next(self) -> Message:
        return self._events.get(timeout=10)

    def stop(self) -> float:
        """Stop the input thread; return the seconds that this took."""
        began = time.perf_counter()
        self.driver.exit_event.set()
        self.thread.join(10)
        return time.perf_counter() - began


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverTerminal]:
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as stdin:
        tty.setraw(theirs)
        monkeypatch.setattr(sys, "__stdin__", stdin)
        driver = asyncio.run(_driver())
        one = DriverTerminal(monkeypatch, ours, driver, Thread(target=driver.run_input_thread, daemon=True))
        yield one
        one.stop()
        driver.close()
    for end in (ours, theirs):
        os.close(end)


async def _driver() -> Driver:
    return Driver(App[Any]())


def test_keys_and_pastes(terminal: DriverTerminal) -> None:
    terminal.write("aé\x1b[A".encode())
    keys = [terminal.next() for _ in range(3)]
    assert [key.key for key in keys if isinstance(key, events.Key)] == ["a", "é", "up"]
    terminal.write(b"\x1b[200~one\x11two\x1b[201~")
    paste = terminal.next()
    assert isinstance(paste, Paste)
    assert paste.raw == "one\x11two"


def test_lone_escape_waits_only_for_its_delay(terminal: DriverTerminal) -> None:
    delays = []
    for _ in range(5):
        began = time.perf_counter()
        terminal.write(b"\x1b")
        key = terminal.next()
        delays.append(time.perf_counter() - began)
        assert isinstance(key, events.Key)
        assert key.key == "escape"
    assert min(delays) < ESCAPE_DELAY + 0.03


def test_invalid_utf8_is_replaced(terminal: DriverTerminal) -> None:
    terminal.write(b"\xff")
    assert isinstance(key := terminal.next(), events.Key)
    assert key.character == "\N{REPLACEMENT CHARACTER}"
    terminal.write(b"\xc3")
    terminal.write(b"\xa9x")
    assert [key.character for key in (terminal.next(), terminal.next()) if isinstance(key, events.Key)] == ["é", "x"]


def test_input_thread_can_be_restarted(terminal: DriverTerminal) -> None:
    terminal.write(b"a")
    terminal.next()
    assert terminal.stop() < 1
    assert not terminal.thread.is_alive()
    terminal.driver.exit_event.clear()
    terminal.thread = Thread(target=terminal.driver.run_input_thread, daemon=True)  # like after Ctrl+Z
    terminal.thread.start()
    terminal.write(b"b")
    assert isinstance(key := terminal.next(), events.Key)
    assert key.key == "b"
