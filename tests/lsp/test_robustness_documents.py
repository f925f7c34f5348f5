"""Documents follow the editor's exactly or are dropped, and listeners get each change."""

from typing import Any

import pytest

from localdflash.lsp import protocol
from localdflash.lsp.document import Document
from tests.lsp.wire import Local, change, changing, notification

A, B = "file:///project/a.py", "file:///project/b%20%C3%A9.py"
X = change((0, 0), (0, 0), "x")


class Heard(list[Any]):
    """The calls of the listeners, with the text as they saw it."""

    def __init__(self, client: Local) -> None:
        super().__init__()
        followed = client.protocol
        followed.on_open = lambda document: self.append(("open", document.uri, document.text))
        followed.on_change = self._changed
        followed.on_changed = lambda document: self.append(("changed", document.version))
        followed.on_save = lambda uri: self.append(("save", uri))
        followed.on_close = lambda uri: self.append(("close", uri))

    def _changed(self, document: Document, first: int, old: Any, new: Any) -> None:
        self.append((document.version, first, list(old), list(new), document.text))


@pytest.fixture
def client() -> Local:
    found = Local("utf-16")
    found.open(A, "one\ntwo\nthree\n")
    return found


def logged(client: Local) -> list[str]:
    return [message["params"]["message"] for message in client.sent if message.get("method") == "window/logMessage"]


def test_changes_of_the_whole_text(client: Local) -> None:
    heard = Heard(client)
    client.change(A, 2, {"text": "one\n2\n2b\nthree\n"})
    client.change(A, 3, {"text": "one\n2\n2b\nthree\n"})
    assert heard == [(2, 1, ["two"], ["2", "2b"], "one\n2\n2b\nthree\n"), ("changed", 2), ("changed", 3)]
    client.change(A, 4, X, {"text": "fresh\n"}, change((0, 5), (0, 5), "!"), {"text": "y"}, change((0, 1), (0, 1), "z"))
    assert client.text(A) == "yz"
    client.change(A, 5)
    client.change(A, 6, X | {"rangeLength": 0})  # the old form of a range
    assert client.text(A) == "xyz"


def test_opening_closing_saving(client: Local) -> None:
    heard = Heard(client)
    client.change(B, 1, X)  # not open
    client.send(notification("textDocument/didSave", {"textDocument": {"uri": B}}))
    client.send(notification("textDocument/didClose", {"textDocument": {"uri": B}}))
    assert heard == []
    client.open(B, "b", version=7)
    client.open(B, "again", version=8)
    client.send(notification("textDocument/didSave", {"textDocument": {"uri": B}, "text": "ignored"}))
    client.send(notification("textDocument/didClose", {"textDocument": {"uri": B}}))
    client.change(B, 9, X)
    client.open(B, "back", version=1)
    client.change(B, 2, X)
    assert heard[:4] == [("open", B, "b"), ("open", B, "again"), ("save", B), ("close", B)]
    assert heard[4:] == [("open", B, "back"), (2, 0, ["back"], ["xback"], "xback"), ("changed", 2)]
    assert client.text(A) == "one\ntwo\nthree\n"


BROKEN = {
    "no version": {"textDocument": {"uri": A}, "contentChanges": [X]},
    "no text": changing(A, 2, {"range": X["range"]}),
    "a negative line": changing(A, 2, change((-1, 0), (0, 0), "x")),
    "one good change and a bad one": changing(A, 2, X, {"text": []}),
}


@pytest.mark.parametrize("params", BROKEN.values(), ids=BROKEN)
def test_an_invalid_change_drops_the_document_until_it_is_opened_again(client: Local, params: object) -> None:
    client.open(B, "b")
    heard = Heard(client)
    client.send(notification("textDocument/didChange", params))
    assert (client.text(A), client.text(B)) == (None, "b")
    assert heard == [("close", A)]
    assert any(A in line and "open it again" in line for line in logged(client))
    client.change(A, 3, X)
    assert client.text(A) is None, "an edit of an unknown text was applied"
    client.open(A, "whole", 4)
    client.change(A, 5, X)
    assert client.text(A) == "xwhole"


def test_an_invalid_change_without_a_uri_drops_all_documents(client: Local) -> None:
    for method in ("textDocument/didSave", "textDocument/didClose", "$/setTrace", "nothing/here"):
        client.send(notification(method, {"textDocument": {"uri": 5}, "value": 5}))
    assert client.text(A) == "one\ntwo\nthree\n"
    for params in (None, {}, {"textDocument": {"uri": None}}):
        client.open(B, "b")
        client.send(notification("textDocument/didChange", params))
        assert (client.text(A), client.text(B)) == (None, None)


def test_documents_beyond_the_limit_are_not_kept(client: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_DOCUMENT_CHARS", 100)
    heard = Heard(client)
    client.open(B, "b" * 101)
    assert (client.text(B), heard) == (None, [])
    client.open(B, "b" * 99)
    client.change(B, 2, X)
    assert client.text(B) == "x" + "b" * 99
    client.change(B, 3, X)
    assert client.text(B) is None
    assert heard[-1] == ("close", B)
    assert sum("too large" in line for line in logged(client)) == 2
