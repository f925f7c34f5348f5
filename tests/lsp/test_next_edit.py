"""The next edit over the wire: when it is sent, for which version, in which units, and when it is not."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from localdflash.lsp import next_edit
from tests.lsp.wire import Wire, change, changing, connected, in_thread, notification, opening, serving_on_socket

URI = "file:///project/example.py"
TEXT = "def area(width, height):\n    print('😋', width)\n    return width * height\n"
RENAMED = change((0, 9), (0, 14), "w")
ON = {"nextEdit": True}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(next_edit, "PAUSE_SECONDS", 0.2)
    with in_thread(serving_on_socket()) as path, connected(path) as wire:
        yield wire


def begin(server: Wire, *encodings: str, text: str = TEXT, uri: str = URI, **options: Any) -> None:
    server.begin(*encodings, options=options or ON)
    server.send(notification("textDocument/didOpen", opening(uri, text)))


def edit(server: Wire, version: int, *changes: Any, uri: str = URI) -> None:
    server.send(notification("textDocument/didChange", changing(uri, version, *changes)))


def received(server: Wire) -> Any:
    """The next proposal."""
    while (message := server.receive()) is not None:
        if message.get("method") == next_edit.METHOD:
            return message["params"]
    raise AssertionError("the server has ended")


def is_silent(server: Wire) -> bool:
    """Return whether nothing comes within the pause and some time after it."""
    end = time.monotonic() + next_edit.PAUSE_SECONDS + 0.2
    while time.monotonic() < end:
        server.ask("localdflash/status", {})
        time.sleep(0.05)
    return not [message for message in server.others if message.get("method") == next_edit.METHOD]


@pytest.mark.parametrize(("encoding", "column"), [("utf-16", 16)])
def test_it_is_for_one_version_and_in_the_units_of_the_client(server: Wire, encoding: str, column: int) -> None:
    begin(server, encoding)
    edit(server, 2, RENAMED)
    start, end = ({"line": 1, "character": at} for at in (column, column + 5))
    assert received(server) == {
        "textDocument": {"uri": URI, "version": 2},
        "edit": {"range": {"start": start, "end": end}, "newText": "w"},
    }


def test_it_comes_after_a_pause_and_at_once_after_an_accepted_one(server: Wire) -> None:
    begin(server)
    begun = time.monotonic()
    edit(server, 2, RENAMED)
    first = received(server)["edit"]
    assert time.monotonic() - begun >= next_edit.PAUSE_SECONDS
    begun = time.monotonic()
    edit(server, 3, {"range": first["range"], "text": first["newText"]})
    assert received(server)["edit"]["range"]["start"] == {"line": 2, "character": 11}
    assert time.monotonic() - begun < next_edit.PAUSE_SECONDS
    edit(server, 4, change((2, 11), (2, 16), "w"))
    assert is_silent(server)


def test_what_the_user_sent_away_does_not_come_again(server: Wire) -> None:
    begin(server)
    edit(server, 2, RENAMED)
    received(server)
    server.send(notification("localdflash/didRejectNextEdit", {"textDocument": {"uri": URI}}))
    edit(server, 3, change((2, 11), (2, 16), "w"))
    assert is_silent(server)
