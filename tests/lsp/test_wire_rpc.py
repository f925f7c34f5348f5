"""What a client may send over a socket: one answer to each request, and the next request is answered too."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lsp.wire import (
    Wire,
    asking,
    change,
    changing,
    connected,
    framed,
    framed_text,
    initialize,
    notification,
    opening,
    request,
    serving_in_thread,
)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
NOT_INITIALIZED = -32002
ASK = "textDocument/inlineCompletion"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, serving_in_thread() as path:
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


@pytest.mark.parametrize("body", [b"{", b"", b"[" * 10_000, b"\xff\xfe\x00"], ids=["half", "empty", "deep", "bytes"])
def test_no_json(wire: Wire, body: bytes) -> None:
    wire.send_bytes(framed_text(body))
    assert code(wire.answer(None)) == PARSE_ERROR


NO_MESSAGES: dict[str, Any] = {
    "a number": 1,
    "an empty object": {},
    "a batch": [request(1, ASK, asking()), request(2, ASK, asking())],
    "no method": {"jsonrpc": "2.0"},
    "id null": request(None, ASK, asking()),
    "id true": request(True, ASK, asking()),
    "id a fraction": request(1.5, ASK, asking()),
    "a method that is a number": {"jsonrpc": "2.0", "method": 5},
}


@pytest.mark.parametrize("message", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_json_that_is_no_message(wire: Wire, message: object) -> None:
    wire.send(message)
    assert code(wire.answer(None)) == INVALID_REQUEST


@pytest.mark.parametrize("version", [{}, {"jsonrpc": "1.0"}, {"jsonrpc": 2.0}], ids=["none", "1.0", "number"])
def test_another_version_of_json_rpc(wire: Wire, version: dict[str, Any]) -> None:
    wire.send({"id": 5, "method": ASK, "params": asking()} | version)
    assert code(wire.answer(5)) == INVALID_REQUEST


def test_ids_come_back_unmodified(wire: Wire) -> None:
    for key in (0, -1, 2**53, "", "1", "é😋"):
        wire.send(request(key, ASK, asking()))
        assert wire.answer(key) == {"jsonrpc": "2.0", "id": key, "result": None}


@pytest.mark.parametrize("method", ["textDocument/nothing", "$/nothing", "initialized", "exit", "textDocument/didOpen"])
def test_unknown_requests_and_notifications_sent_as_requests(wire: Wire, method: str) -> None:
    wire.send(request(7, method, {}), {"jsonrpc": "2.0", "id": 8, "method": method})
    assert code(wire.answer(7)) == code(wire.answer(8)) == METHOD_NOT_FOUND


def test_notifications_are_never_answered(wire: Wire) -> None:
    folder = {"uri": "file:///x", "name": "x"}
    wire.send(
        notification("$/nothing"),
        notification("$/setTrace", {"value": 5}),
        notification("$/progress", {"token": 1, "value": {}}),
        notification("initialized", {}),
        notification("workspace/didChangeConfiguration", {"settings": None}),
        notification("workspace/didChangeWatchedFiles", {"changes": [{"uri": 5}]}),
        notification("workspace/didChangeWorkspaceFolders", {"event": {"added": [], "removed": [folder]}}),
        notification("textDocument/didClose", {"textDocument": {"uri": "file:///unknown.py"}}),
        notification("textDocument/didChange", changing("file:///unknown.py", 1, {"text": "x"})),
        notification("window/workDoneProgress/cancel", {"token": "none"}),
        notification(ASK, asking()),
        *(notification("$/cancelRequest", params) for params in (None, {}, 5, {"id": None}, {"id": 99}, {"id": [1]})),
    )
    wire.check()
    assert not [message for message in wire.others if "method" not in message]


def test_answers_to_nothing_are_ignored(wire: Wire) -> None:
    for answer in ({"result": None}, {"result": {"a": 1}}, {"error": {"code": 1, "message": "x"}}, {"error": None}):
        wire.send({"jsonrpc": "2.0", "id": 1} | answer)
    wire.check()
    assert not [message for message in wire.others if "method" not in message]


WRONG: dict[str, Any] = {
    "no parameters": None,
    "a list": [1, 2],
    "an empty object": {},
    "a uri that is a number": asking() | {"textDocument": {"uri": 5}},
    "a position that is null": asking() | {"position": None},
    "a line that is a text": asking() | {"position": {"line": "0", "character": 0}},
    "a line that is a fraction": asking() | {"position": {"line": 0.5, "character": 0}},
    "a line that is negative": asking(line=-1),
    "a line beyond all": asking(line=2**40),
    "a character that is true": asking() | {"position": {"line": 0, "character": True}},
    "a context that is a list": asking() | {"context": []},
}


@pytest.mark.parametrize("params", WRONG.values(), ids=WRONG)
def test_parameters_of_wrong_types(wire: Wire, params: object) -> None:
    wire.send(request(3, ASK, params))
    assert code(wire.answer(3)) == INVALID_PARAMS


@pytest.mark.parametrize("arguments", [None, [], [1, 2, 3], [{"a": 1}]], ids=repr)
def test_a_command_with_wrong_arguments_is_no_internal_error(wire: Wire, arguments: object) -> None:
    answer = wire.ask("workspace/executeCommand", {"command": "localdflash.accept", "arguments": arguments})
    assert code(answer) == INVALID_PARAMS
    assert "one argument, the id of a suggestion" in answer["error"]["message"]
    assert not [message for message in wire.said() if "internal error" in message]


def test_commands(wire: Wire) -> None:
    accept = {"command": "localdflash.accept", "arguments": ["no such id"]}
    assert wire.ask("workspace/executeCommand", accept)["result"] is None
    assert code(wire.ask("workspace/executeCommand", {"command": "rm -rf"})) == INVALID_PARAMS


def test_several_messages_in_one_write_and_one_in_many(wire: Wire) -> None:
    wire.send(*(request(f"k{i}", ASK, asking()) for i in range(50)))
    for i in range(50):
        assert wire.answer(f"k{i}")["result"] is None
    for byte in framed(request("slow", ASK, asking())):
        wire.send_bytes(bytes([byte]))
    assert wire.answer("slow")["result"] is None


@pytest.mark.parametrize("method", [ASK, "shutdown", "nothing/here"])
def test_requests_before_initialize(fresh: Wire, method: str) -> None:
    assert code(fresh.ask(method, asking())) == NOT_INITIALIZED
    assert "result" in fresh.begin()
    fresh.check()


def test_notifications_before_initialize(fresh: Wire) -> None:
    fresh.send(
        notification("initialized", {}),
        notification("textDocument/didOpen", opening("file:///a.py", "x")),
        notification("textDocument/didChange", changing("file:///a.py", 1, change((0, 0), (0, 0), "x"))),
        notification("$/cancelRequest", {"id": 1}),
        notification("$/setTrace", {"value": "off"}),
    )
    assert "result" in fresh.begin()
    fresh.check()
    assert not fresh.others


INITIALIZE: dict[str, Any] = {
    "nothing": None,
    "a list": [],
    "no capabilities": {"processId": None, "rootUri": None},
    "a process that is a text": initialize() | {"processId": "me"},
    "encodings that are a number": initialize() | {"capabilities": {"general": {"positionEncodings": 5}}},
}


@pytest.mark.parametrize("params", INITIALIZE.values(), ids=INITIALIZE)
def test_initialize_with_wrong_parameters_can_be_tried_again(fresh: Wire, params: object) -> None:
    assert code(fresh.ask("initialize", params)) == INVALID_PARAMS
    assert "result" in fresh.begin()
    fresh.check()


def test_what_real_editors_say_of_themselves(fresh: Wire) -> None:
    """Truths, numbers and texts of enumerations, and numbers as Lua may write them."""
    markup, kinds = ["markdown", "plaintext"], list(range(1, 26))
    item = {"snippetSupport": True, "documentationFormat": markup, "deprecatedSupport": False}
    text = {
        "synchronization": {"dynamicRegistration": False, "willSave": True, "didSave": True},
        "completion": {"completionItem": item, "completionItemKind": {"valueSet": kinds}, "insertTextMode": 1},
        "inlineCompletion": {"dynamicRegistration": True},
        "publishDiagnostics": {"tagSupport": {"valueSet": [1, 2]}, "versionSupport": False},
    }
    workspace = {"workspaceFolders": True, "configuration": True, "resourceOperations": ["rename", "create"]}
    workspace_edit = {"failureHandling": "textOnlyTransactional", "documentChanges": True}
    capabilities = {"textDocument": text, "workspace": workspace | {"workspaceEdit": workspace_edit}}
    params = {"processId": 1.0, "clientInfo": {"name": "an editor"}, "locale": "de", "trace": "off"}
    folders = [{"uri": "file:///project", "name": "project"}]
    more = {"rootPath": None, "rootUri": "file:///project", "workspaceFolders": folders}
    answer = fresh.ask("initialize", params | more | {"capabilities": capabilities})
    assert "inlineCompletionProvider" in answer["result"]["capabilities"]
    sync = answer["result"]["capabilities"]["textDocumentSync"]
    assert (sync["openClose"], sync["change"], sync["save"]) == (True, 2, True)
    fresh.check()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [([], "utf-16"), (["utf-8"], "utf-8"), (["utf-32", "utf-8"], "utf-32"), (["utf-7"], "utf-16")],
)
def test_position_encodings(fresh: Wire, offered: list[str], chosen: str) -> None:
    assert fresh.begin(*offered)["result"]["capabilities"]["positionEncoding"] == chosen


@pytest.mark.parametrize("options", [[], 5, {"push": "yes", "deadlineMs": -1}, {"unknown": {"a": 1}}])
def test_initialization_options_of_any_kind(fresh: Wire, options: Any) -> None:
    assert "result" in fresh.begin(options=options)
    fresh.check()


def test_initialize_twice(wire: Wire) -> None:
    assert code(wire.ask("initialize", initialize())) == INVALID_REQUEST


def test_after_shutdown_nothing_but_exit_is_accepted_and_other_editors_stay(wire: Wire, server: str) -> None:
    with connected(server) as other:
        other.begin()
        assert other.ask("shutdown", {"a": 1})["result"] is None
        for method in (ASK, "shutdown", "initialize", "nothing/here"):
            assert code(other.ask(method, asking())) == INVALID_REQUEST
        other.send(notification("textDocument/didOpen", opening("file:///a.py", "x")), notification("exit"))
        assert other.receive() is None
