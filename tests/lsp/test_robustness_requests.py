"""Pending requests of both sides: duplicate ids, cancels, and invalid answers."""

import asyncio
from typing import Any, cast

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from localdflash.lsp.transport import serve_connection
from tests.lsp.wire import Local, asking, changing, framed, notification, opening, request

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
