"""What a client may send, over stdin, a Unix socket and a port: one answer to each request, and the next one too."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.lsp.wire import (
    Wire,
    asking,
    changing,
    connected,
    framed,
    framed_text,
    notification,
    on_all_transports,
    opening,
    request,
)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
ASK = "textDocument/inlineCompletion"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    with on_all_transports() as found:
        yield found


@pytest.fixture(params=["stdio", "unix", "tcp"])
def wire(servers: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A client that is initialized; whatever a test sends, the next request is answered."""
    with ExitStack() as stack:
        found: Wire = servers["stdio"]
        if request.param != "stdio":
            found = stack.enter_context(connected(servers[request.param]))
            found.begin()
        found.others.clear()
        yield found
        found.check()


@pytest.fixture
def one(servers: dict[str, Any]) -> Iterator[Wire]:
    """The same, over one transport."""
    with connected(servers["unix"]) as found:
        found.begin()
        yield found
        found.check()


def code(answer: dict[str, Any]) -> int:
    assert "result" not in answer
    assert answer["error"]["message"]
    return int(answer["error"]["code"])


@pytest.mark.parametrize(
    "noise",
    [b"noise\r\n", b"Content-Length: -1\r\n\r\n", b"Content-Length: 99999999999\r\n\r\n", bytes(5000), b"{}\n"],
    ids=["a line", "a negative length", "a length beyond all", "zeros", "JSON without a header"],
)
def test_noise(wire: Wire, noise: bytes) -> None:
    wire.send_bytes(noise)
    wire.check()


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"nonsense", b"[" * 10_000, b'{"a":' * 10_000, b"\xff\xfe\x00", b'{"id": 1,}'],
    ids=["half", "empty", "words", "deep lists", "deep objects", "bytes", "a comma too many"],
)
def test_no_json(wire: Wire, body: bytes) -> None:
    wire.send_bytes(framed_text(body))
    assert code(wire.answer(None)) == PARSE_ERROR


NO_MESSAGES: dict[str, Any] = {
    "a number": 1,
    "null": None,
    "a text": "initialize",
    "nothing": {},
    "a batch": [request(1, ASK, asking()), request(2, ASK, asking())],
    "an empty batch": [],
    "no method": {"jsonrpc": "2.0"},
    "id null": request(None, ASK, asking()),
    "id true": request(True, ASK, asking()),
    "id a fraction": request(1.5, ASK, asking()),
    "id a list": request([1], ASK, asking()),
    "id an object": request({"a": 1}, ASK, asking()),
    "a method that is a number": {"jsonrpc": "2.0", "method": 5},
    "a method that is null": {"jsonrpc": "2.0", "method": None, "params": {}},
}


@pytest.mark.parametrize("message", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_json_that_is_no_message(one: Wire, message: object) -> None:
    one.send(message)
    assert code(one.answer(None)) == INVALID_REQUEST


@pytest.mark.parametrize(
    "version", [{}, {"jsonrpc": "1.0"}, {"jsonrpc": 2.0}, {"jsonrpc": None}], ids=["none", "1.0", "number", "null"]
)
def test_another_version_of_json_rpc(one: Wire, version: dict[str, Any]) -> None:
    one.send({"id": 5, "method": ASK, "params": asking()} | version)
    assert code(one.answer(5)) == INVALID_REQUEST


@pytest.mark.parametrize("key", [0, -1, 1, 2**31 - 1, 2**53, "", "1", "a b", "é😋", "x" * 5000], ids=repr)
def test_ids_come_back_as_they_were(one: Wire, key: object) -> None:
    one.send(request(key, ASK, asking()))
    assert one.answer(key) == {"jsonrpc": "2.0", "id": key, "result": None}


@pytest.mark.parametrize(
    "method", ["textDocument/nothing", "$/nothing", "initialized", "exit", "", "x" * 5000, "textDocument/didOpen"]
)
def test_requests_that_there_are_not(one: Wire, method: str) -> None:
    """Those of notifications are none either."""
    one.send(request(7, method, {}))
    assert code(one.answer(7)) == METHOD_NOT_FOUND


def test_an_unknown_request_without_parameters(one: Wire) -> None:
    one.send({"jsonrpc": "2.0", "id": 8, "method": "nothing/here"})
    assert code(one.answer(8)) == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("$/nothing", None),
        ("$/setTrace", {"value": "verbose"}),
        ("$/setTrace", {"value": 5}),
        ("$/progress", {"token": 1, "value": {}}),
        ("window/nothing", {"a": [1, {"b": 2}]}),
        ("initialized", {}),
        ("workspace/didChangeConfiguration", {"settings": None}),
        ("workspace/didChangeWatchedFiles", {"changes": [{"uri": 5}]}),
        (
            "workspace/didChangeWorkspaceFolders",
            {"event": {"added": [], "removed": [{"uri": "file:///x", "name": "x"}]}},
        ),
        ("notebookDocument/didOpen", {}),
        ("textDocument/didSave", {"textDocument": {"uri": "file:///unknown.py"}}),
        ("textDocument/didClose", {"textDocument": {"uri": "file:///unknown.py"}}),
        ("textDocument/didChange", changing("file:///unknown.py", 1, {"text": "x"})),
        ("window/workDoneProgress/cancel", {"token": "none"}),
        (ASK, asking()),
    ],
)
def test_notifications_are_never_answered(one: Wire, method: str, params: object) -> None:
    one.send(notification(method, params))
    one.check()
    assert not [message for message in one.others if "method" not in message]


WRONG: dict[str, Any] = {
    "no parameters": None,
    "a list": [1, 2],
    "a text": "x",
    "an empty object": {},
    "a document that is a text": asking() | {"textDocument": "file:///a.py"},
    "a uri that is a number": asking() | {"textDocument": {"uri": 5}},
    "a uri that is null": asking() | {"textDocument": {"uri": None}},
    "a position that is null": asking() | {"position": None},
    "a line that is a text": asking() | {"position": {"line": "0", "character": 0}},
    "a line that is a fraction": asking() | {"position": {"line": 0.5, "character": 0}},
    "a line that is negative": asking(line=-1),
    "a line beyond all": asking(line=2**40),
    "a character that is true": asking() | {"position": {"line": 0, "character": True}},
    "no character": asking() | {"position": {"line": 0}},
    "a context that is a list": asking() | {"context": []},
}


@pytest.mark.parametrize("params", WRONG.values(), ids=WRONG)
def test_parameters_of_wrong_types(one: Wire, params: object) -> None:
    one.send(request(3, ASK, params))
    assert code(one.answer(3)) == INVALID_PARAMS


@pytest.mark.parametrize("arguments", [None, [], [1, 2, 3], [{"a": 1}], ["no such id"]], ids=repr)
@pytest.mark.parametrize("command", ["localdflash.accept", "rm -rf", ""])
def test_commands_of_any_kind_are_answered(one: Wire, command: str, arguments: object) -> None:
    answer = one.ask("workspace/executeCommand", {"command": command, "arguments": arguments})
    if command == "localdflash.accept" and arguments == ["no such id"]:
        assert answer.get("result", answer) is None
    else:
        assert code(answer) == INVALID_PARAMS


def test_a_command_without_arguments_is_no_defect_of_ours(one: Wire) -> None:
    one.send(request(7, "workspace/executeCommand", {"command": "localdflash.accept"}))
    answer = one.answer(7)
    assert code(answer) == INVALID_PARAMS
    assert "one argument, the id of a suggestion" in answer["error"]["message"]
    assert not [message for message in one.said() if "internal error" in message]


@pytest.mark.parametrize("params", [None, {}, [], 5, {"id": None}, {"id": 99}, {"id": "x"}, {"id": [1]}, {"id": True}])
def test_cancelling_what_was_not_asked(one: Wire, params: object) -> None:
    one.send(notification("$/cancelRequest", params))


@pytest.mark.parametrize(
    "answer",
    [
        {"result": None},
        {"result": {"a": 1}},
        {"error": {"code": 1, "message": "x"}},
        {"error": "x"},
        {"error": None},
        {},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("key", [1, 1001, "x"])
def test_answers_that_nobody_asked_for(one: Wire, key: object, answer: dict[str, Any]) -> None:
    one.send({"jsonrpc": "2.0", "id": key} | answer)
    one.check()


def test_several_messages_in_one_write_and_one_in_many(wire: Wire) -> None:
    data = b"".join(framed(request(f"k{i}", ASK, asking())) for i in range(50))
    wire.send_bytes(data)
    for i in range(50):
        assert wire.answer(f"k{i}")["result"] is None
    for byte in framed(request("slow", ASK, asking())):
        wire.send_bytes(bytes([byte]))
    assert wire.answer("slow")["result"] is None


def test_100_mb_are_refused_and_forgotten(wire: Wire) -> None:
    body = json.dumps(notification("textDocument/didOpen", opening("file:///large.txt", "@"))).encode()
    head, tail = body.split(b"@")
    wire.send_bytes(b"Content-Length: %d\r\n\r\n%s" % (100_000_000, head))
    left, chunk = 100_000_000 - len(head) - len(tail), b"x" * 1_000_000
    while left:
        wire.send_bytes(chunk[:left])
        left -= min(left, len(chunk))
    wire.send_bytes(tail)
    assert "100 MB" in wire.answer(None)["error"]["message"]
    wire.check()
    assert any("large.txt" in line for line in wire.said())
