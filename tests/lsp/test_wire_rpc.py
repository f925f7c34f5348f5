"""Messages of a client over a socket: every request gets one answer, and so does the next one."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lsp.wire import (
    Wire,
    asking,
    changing,
    connected,
    framed,
    framed_text,
    in_thread,
    initialize,
    notification,
    opening,
    request,
    serving_on_socket,
)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
NOT_INITIALIZED = -32002
ASK = "textDocument/inlineCompletion"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, in_thread(serving_on_socket()) as path:
        patch.setenv("LOCALDFLASH_HOME", path.removesuffix("/lsp.sock"))
        yield path


@pytest.fixture
def fresh(server: str) -> Iterator[Wire]:
    """A connection on which nothing was sent."""
    with connected(server) as wire:
        yield wire


@pytest.fixture
def wire(fresh: Wire) -> Iterator[Wire]:
    """A client that is initialized; whatever a test sends, the next request is answered."""
    fresh.begin()
    yield fresh
    fresh.check()


def code(answer: dict[str, Any]) -> int:
    assert "result" not in answer
    assert answer["error"]["message"]
    return int(answer["error"]["code"])


def test_a_client_that_does_not_speak_lsp_is_told_and_disconnected(server: str, wire: Wire) -> None:
    with connected(server) as other:
        body = framed(request(1, "initialize", initialize()))
        other.send_bytes(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + body)
        answer = other.answer(None)
        assert code(answer) == PARSE_ERROR
        assert "the connection is closed" in answer["error"]["message"]
        assert other.receive() is None


NO_MESSAGES: list[Any] = [
    1,
    {},
    [request(1, ASK, asking()), request(2, ASK, asking())],  # a batch
    {"jsonrpc": "2.0"},
    {"jsonrpc": "2.0", "method": 5},
    *(request(key, ASK, asking()) for key in (None, True, 1.5)),
]


def test_input_that_is_no_message(wire: Wire) -> None:
    for body in (b"{", b"", b"[" * 10_000, b"\xff\xfe\x00"):
        wire.send_bytes(framed_text(body))
        assert code(wire.answer(None)) == PARSE_ERROR
    for message in NO_MESSAGES:
        wire.send(message)
        assert code(wire.answer(None)) == INVALID_REQUEST
    for version in ({}, {"jsonrpc": "1.0"}, {"jsonrpc": 2.0}):
        wire.send({"id": 5, "method": ASK, "params": asking()} | version)
        assert code(wire.answer(5)) == INVALID_REQUEST


def test_unknown_requests_and_notifications_sent_as_requests(wire: Wire) -> None:
    for method in ("textDocument/nothing", "$/nothing", "initialized", "exit", "textDocument/didOpen"):
        wire.send(request(7, method, {}), {"jsonrpc": "2.0", "id": 8, "method": method})
        assert code(wire.answer(7)) == code(wire.answer(8)) == METHOD_NOT_FOUND


def test_notifications_are_never_answered(wire: Wire) -> None:
    folder = {"uri": "file:///x", "name": "x"}
    wire.send(
        notification("$/nothing"),
        notification("$/setTrace", {"value": 5}),
        notification("workspace/didChangeWatchedFiles", {"changes": [{"uri": 5}]}),
        notification("workspace/didChangeWorkspaceFolders", {"event": {"added": [], "removed": [folder]}}),
        notification("textDocument/didClose", {"textDocument": {"uri": "file:///unknown.py"}}),
        notification("textDocument/didChange", changing("file:///unknown.py", 1, {"text": "x"})),
        notification(ASK, asking()),
        *(notification("$/cancelRequest", params) for params in (None, {}, 5, {"id": None}, {"id": 99}, {"id": [1]})),
    )
    wire.check()
    assert not [message for message in wire.others if "method" not in message]


WRONG: list[Any] = [
    None,
    [1, 2],
    {},
    asking() | {"textDocument": {"uri": 5}},
    asking() | {"position": None},
    asking() | {"context": []},
    *(asking() | {"position": {"line": line, "character": 0}} for line in ("0", 0.5, -1, 2**40)),
    asking() | {"position": {"line": 0, "character": True}},
]


def test_parameters_of_wrong_types(wire: Wire) -> None:
    for params in WRONG:
        wire.send(request(3, ASK, params))
        assert code(wire.answer(3)) == INVALID_PARAMS, params
    for arguments in (None, [], [1, 2, 3], [{"a": 1}]):
        answer = wire.ask("workspace/executeCommand", {"command": "localdflash.accept", "arguments": arguments})
        assert code(answer) == INVALID_PARAMS
        assert "one argument, the id of a suggestion" in answer["error"]["message"]
    assert not [message for message in wire.said() if "internal error" in message]


def test_requests_before_initialize(fresh: Wire) -> None:
    for method in (ASK, "shutdown", "nothing/here"):
        assert code(fresh.ask(method, asking())) == NOT_INITIALIZED
    assert "result" in fresh.begin()
    assert code(fresh.ask("initialize", initialize())) == INVALID_REQUEST
    fresh.check()


def test_after_shutdown_nothing_but_exit_is_accepted_and_other_editors_stay(wire: Wire, server: str) -> None:
    with connected(server) as other:
        other.begin()
        assert other.ask("shutdown", {"a": 1})["result"] is None
        for method in (ASK, "shutdown", "initialize", "nothing/here"):
            assert code(other.ask(method, asking())) == INVALID_REQUEST
        other.send(notification("textDocument/didOpen", opening("file:///a.py", "x")), notification("exit"))
        assert other.receive() is None
