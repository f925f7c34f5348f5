# ruff: noqa: F811
"""Next edits that a model predicts, over the wire: a language server, and a daemon whose target answers by script."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.base.files import paths
from localdflash.code.next_edit.line_changes import LineChange
from localdflash.engine.host_pair import HostPair
from localdflash.lsp import next_edit
from localdflash.lsp.document import Document, line_feeds
from localdflash.lsp.next_edit import NextEdits
from localdflash.server.sockets import prepare_folder
from tests.lsp.test_next_edit import ON, edit, is_silent, received
from tests.lsp.wire import Wire, change, connected, in_thread, notification, opening, serving_on_socket
from tests.support import daemons
from tests.support.scripted_pair import answering_client
from tests.support.served import delayed, serving
from tests.text.conftest import make_vocabulary, oracle  # noqa: F401

URI = "file:///project/example.rb"  # the rules know no Ruby
LINES = [f"line {number}" for number in range(600)]
LINES[300:303] = ["def area(width)", "  width * 2", "end"]
TEXT = "\n".join(LINES) + "\n"
RENAMED = change((300, 9), (300, 14), "w")
Answer = Callable[[str], Sequence[str]]


def answer(prompt: str) -> Sequence[str]:
    """Rewrite Sweep's current text: rename the use in the line after the cursor, and append a line far from it."""
    assert "original:\nline 297\nline 298\nline 299\ndef area(width)\n" in prompt
    current = prompt.rpartition("<|file_sep|>current/example.rb\n")[2].partition("<|file_sep|>")[0]
    return [current.replace("  width", "  w") + "more", "<|endoftext|>"]


Start = Callable[[Answer], Wire]


@pytest.fixture
def start(make_vocabulary: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts both; the client has the document open, and has got a completion."""
    monkeypatch.setattr(next_edit, "PAUSE_SECONDS", 0.1)
    vocabulary = make_vocabulary(
        dict.fromkeys(["<|endoftext|>", "<|file_sep|>"], 3), {"general.name": "Sweep next edit"}
    )
    with ExitStack() as stack:

        def begin(scripted: Answer) -> Wire:
            stack.enter_context(daemons.short_home(monkeypatch))
            client, _ = stack.enter_context(answering_client(vocabulary, scripted))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            prepare_folder(paths.daemon_socket())
            listener.bind(str(paths.daemon_socket()))
            listener.listen()
            stack.enter_context(serving(client.app, listener))
            wire = stack.enter_context(connected(stack.enter_context(in_thread(serving_on_socket()))))
            wire.begin(options=ON)
            wire.send(notification("textDocument/didOpen", opening(URI, TEXT)))
            place = {
                "textDocument": {"uri": URI},
                "position": {"line": 299, "character": 8},
                "context": {"triggerKind": 2},
            }
            assert wire.ask("textDocument/inlineCompletion", place)["result"] is None
            return wire

        yield begin


def at(line: int, first: int, last: int, text: str) -> dict[str, Any]:
    return {
        "range": {"start": {"line": line, "character": first}, "end": {"line": line, "character": last}},
        "newText": text,
    }


def test_the_nearest_change_is_proposed_once(start: Start) -> None:
    server = start(answer)
    edit(server, 2, RENAMED, uri=URI)
    proposed = received(server)
    assert proposed["textDocument"] == {"uri": URI, "version": 2}
    assert proposed["edit"] == at(301, 3, 7, "")  # "width" becomes "w"
    server.send(notification("localdflash/didRejectNextEdit", {"textDocument": {"uri": URI}}))
    edit(server, 3, change((300, 10), (300, 11), ", h)"), uri=URI)
    assert is_silent(server)


def test_an_accepted_change_is_followed_by_the_next(start: Start) -> None:
    server = start(answer)
    edit(server, 2, RENAMED, uri=URI)
    first = received(server)["edit"]
    edit(server, 3, {"range": first["range"], "text": first["newText"]}, uri=URI)
    assert received(server)["edit"] == at(311, 8, 8, "\nmore")  # after the last line of the region


def test_the_next_key_cancels_the_request(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostPair, "step", delayed(0.05, HostPair.step))
    asked = list[str]()

    def slow_at_first(prompt: str) -> Sequence[str]:
        asked.append(prompt)
        return ["1 + " * 9_999] if len(asked) == 1 else answer(prompt)

    server = start(slow_at_first)
    edit(server, 2, RENAMED, uri=URI)
    while not asked:
        server.ask("localdflash/status", {})
    edit(server, 3, change((300, 10), (300, 10), "x"), uri=URI)
    assert received(server)["textDocument"]["version"] == 3
    assert len(asked) == 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "b\r\n", "c\n", "\n"]), min_size=1, max_size=6), st.data())
def test_the_model_sees_the_whole_of_a_small_document(parts: list[str], data: st.DataObject) -> None:
    """After any change. The proposed change has the document's line ends."""

    async def edit_once() -> None:
        sent, seen, tasks = list[Any](), list[Any](), list[asyncio.Task[Any]]()

        def spawn(work: Any) -> asyncio.Task[Any]:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        async def predict(_: str, text: Any, diffs: Any) -> list[LineChange]:
            seen.append((text["prefix"] + text["suffix"], len(diffs)))
            return [LineChange(0, 0, ("new", "lines"))]

        edits = NextEdits(lambda _, params: sent.append(params), spawn, lambda _: True, predict)
        edits.has_model = True
        document = Document(URI, "".join(parts), 1, language="ruby")
        edits.opened(document)
        places = st.builds(document.position, st.integers(0, 6), st.sampled_from([0, 99]))
        start, stop = sorted((data.draw(places), data.draw(places)))
        before = document.text
        edits.edited(document, [document.replace(start, stop, data.draw(st.sampled_from(["", "x", "x\ny"])))])
        await asyncio.sleep(0.005)
        for task in tasks:  # more are added
            await task
        text = line_feeds(document.text)
        assert seen == ([(text, 1)] if text != line_feeds(before) else [])
        ending = "\r\n" if document.text.partition("\n")[0].endswith("\r") else "\n"
        assert [one["edit"].new_text for one in sent] == [f"new{ending}lines{ending}"] * len(seen)

    with patch.object(next_edit, "PAUSE_SECONDS", 0):
        asyncio.run(edit_once())
