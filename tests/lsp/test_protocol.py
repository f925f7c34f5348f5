"""Requests and documents of one client: answered once, followed exactly or dropped."""

import asyncio
from typing import Any, cast

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from localdflash.lsp import protocol
from localdflash.lsp.document import Document
from localdflash.lsp.transport import serve_connection
from tests.lsp.wire import Local, asking, change, changing, framed, notification, opening, request

ASK = "textDocument/inlineCompletion"


class Slow(Local):
    """A server whose completions wait for `go`; `began` counts those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.began = asyncio.Event(), 0
        self.seen: list[int] = []

        @self.server.feature(ASK, types.InlineCompletionOptions())
        async def complete(_: types.InlineCompletionParams) -> types.InlineCompletionList:
            self.began += 1
            self.seen += [document.version for document in self.protocol.documents.values()]
            await self.go.wait()
            return types.InlineCompletionList(items=[])

    async def settle(self) -> list[Any]:
        for _ in range(20):
            await asyncio.sleep(0)
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
async def client() -> Slow:
    found = Slow()
    await found.settle()
    return found


def outcome(message: Any) -> Any:
    return message["error"]["code"] if "error" in message else message["result"]


async def test_an_id_in_use_is_refused_and_the_first_request_is_answered(client: Slow) -> None:
    client.send(request(5, ASK, asking()), request(5, ASK, asking()), request("5", ASK, asking()))
    (refused,) = await client.settle()
    assert (refused["id"], outcome(refused), client.began) == (5, -32600, 2)
    client.send({"jsonrpc": "2.0", "id": 5, "result": None})  # a client cannot answer its own request
    assert await client.settle() == []
    client.go.set()
    assert [(sent["id"], outcome(sent)) for sent in await client.settle()] == [(5, {"items": []}), ("5", {"items": []})]
    client.send(request(5, ASK, asking()))  # and then it is free again
    assert [outcome(sent) for sent in await client.settle()] == [{"items": []}]


ANSWERS: list[tuple[dict[str, Any], Any]] = [
    ({"result": [{"name": "x", "uri": "file:///x"}]}, "x"),
    ({"result": None}, None),
    ({"error": {"code": -32601, "message": "no"}}, JsonRpcException),
    ({"result": 5}, JsonRpcException),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
async def test_only_the_client_answers_our_requests(client: Slow, answer: dict[str, Any], expected: Any) -> None:
    future = asyncio.ensure_future(client.server.workspace_workspace_folders_async(None))
    (sent,) = await client.settle()
    client.send(notification("$/cancelRequest", {"id": sent["id"]}))
    client.send({"jsonrpc": "2.0", "id": "another", "result": None})
    client.send({"jsonrpc": "2.0", "id": sent["id"], "result": 1, "error": {"code": 1, "message": "both"}})
    await client.settle()
    assert not future.done()
    client.send({"jsonrpc": "2.0", "id": sent["id"]} | answer)
    await client.settle()
    if expected is JsonRpcException:
        assert isinstance(future.exception(), JsonRpcException)
    else:
        folders = future.result()
        assert (folders and folders[0].name) == expected


async def test_a_request_sees_the_document_as_it_was(client: Slow) -> None:
    messages = [notification("textDocument/didOpen", opening("u", "x"))]
    for version in range(2, 6):
        messages.append(request(version, ASK, asking("u")))
        messages.append(notification("textDocument/didChange", changing("u", version, {"text": "x" * version})))

    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(map(framed, messages)))
    reader.feed_eof()
    assert await serve_connection(client.server, reader, cast(asyncio.StreamWriter, client)) == 1
    assert client.seen == [1, 2, 3, 4]


A, B = "file:///project/a.py", "file:///project/b%20%C3%A9.py"
X = change((0, 0), (0, 0), "x")


class Heard(list[Any]):
    """The calls of the listeners, with the text as they saw it."""

    def __init__(self, editor: Local) -> None:
        super().__init__()
        followed = editor.protocol
        followed.on_open = lambda document: self.append(("open", document.uri, document.text))
        followed.on_change = self._changed
        followed.on_save = lambda uri: self.append(("save", uri))
        followed.on_close = lambda uri: self.append(("close", uri))

    def _changed(self, document: Document, changes: Any) -> None:
        self.append((document.version, changes, document.text))


@pytest.fixture
def editor() -> Local:
    found = Local("utf-16")
    found.open(A, "one\ntwo\nthree\n")
    return found


def logged(editor: Local) -> list[str]:
    return [message["params"]["message"] for message in editor.sent if message.get("method") == "window/logMessage"]


def test_opening_closing_saving(editor: Local) -> None:
    heard = Heard(editor)
    editor.change(B, 1, X)  # not open
    editor.send(notification("textDocument/didSave", {"textDocument": {"uri": B}}))
    editor.send(notification("textDocument/didClose", {"textDocument": {"uri": B}}))
    assert heard == []
    editor.open(B, "b", version=7)
    editor.open(B, "again", version=8)
    editor.send(notification("textDocument/didSave", {"textDocument": {"uri": B}, "text": "ignored"}))
    editor.send(notification("textDocument/didClose", {"textDocument": {"uri": B}}))
    editor.change(B, 9, X)
    editor.open(B, "back", version=1)
    editor.change(B, 2, X)
    assert heard[:4] == [("open", B, "b"), ("open", B, "again"), ("save", B), ("close", B)]
    assert heard[4:] == [("open", B, "back"), (2, [(0, ["back"], ["xback"])], "xback")]
    assert editor.text(A) == "one\ntwo\nthree\n"


BROKEN = {
    "no version": {"textDocument": {"uri": A}, "contentChanges": [X]},
    "no text": changing(A, 2, {"range": X["range"]}),
    "a negative line": changing(A, 2, change((-1, 0), (0, 0), "x")),
    "one good change and a bad one": changing(A, 2, X, {"text": []}),
}


@pytest.mark.parametrize("params", BROKEN.values(), ids=BROKEN)
def test_an_invalid_change_drops_the_document_until_it_is_opened_again(editor: Local, params: object) -> None:
    editor.open(B, "b")
    heard = Heard(editor)
    editor.send(notification("textDocument/didChange", params))
    assert (editor.text(A), editor.text(B)) == (None, "b")
    assert heard == [("close", A)]
    assert any(A in line and "open it again" in line for line in logged(editor))
    editor.change(A, 3, X)
    assert editor.text(A) is None, "an edit of an unknown text was applied"
    editor.open(A, "whole", 4)
    editor.change(A, 5, X)
    assert editor.text(A) == "xwhole"


def test_documents_beyond_the_limit_are_not_kept(editor: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_DOCUMENT_CHARS", 100)
    heard = Heard(editor)
    editor.open(B, "b" * 101)
    assert (editor.text(B), heard) == (None, [])
    editor.open(B, "b" * 99)
    editor.change(B, 2, X)
    assert editor.text(B) == "x" + "b" * 99
    editor.change(B, 3, X)
    assert editor.text(B) is None
    assert heard[-1] == ("close", B)
    assert sum("too large" in line for line in logged(editor)) == 2
