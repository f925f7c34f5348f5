"""Beginning and end of a connection: what is answered before `initialize`, by it, and after `shutdown`."""

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
    initialize,
    notification,
    on_all_transports,
    opening,
    request,
)

INVALID_REQUEST, INVALID_PARAMS, NOT_INITIALIZED = -32600, -32602, -32002
ASK = "textDocument/inlineCompletion"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    with on_all_transports() as found:
        yield found


@pytest.fixture
def fresh(servers: dict[str, Any]) -> Iterator[Wire]:
    """A connection on which nothing was sent."""
    with connected(servers["unix"]) as wire:
        yield wire


@pytest.fixture
def one(fresh: Wire) -> Iterator[Wire]:
    """The same, over one transport."""
    fresh.begin()
    yield fresh
    fresh.check()


def code(answer: dict[str, Any]) -> int:
    assert "result" not in answer
    assert answer["error"]["message"]
    return int(answer["error"]["code"])


@pytest.mark.parametrize("method", [ASK, "shutdown", "workspace/executeCommand", "nothing/here"])
def test_requests_before_initialize(fresh: Wire, method: str) -> None:
    assert code(fresh.ask(method, asking())) == NOT_INITIALIZED
    assert "result" in fresh.begin()
    fresh.check()


@pytest.mark.parametrize(
    "message",
    [
        notification("initialized", {}),
        notification("textDocument/didOpen", opening("file:///a.py", "x")),
        notification("textDocument/didChange", changing("file:///a.py", 1, change((0, 0), (0, 0), "x"))),
        notification("$/cancelRequest", {"id": 1}),
        notification("$/setTrace", {"value": "off"}),
    ],
    ids=lambda message: str(message["method"]),
)
def test_notifications_before_initialize(fresh: Wire, message: object) -> None:
    fresh.send(message)
    assert "result" in fresh.begin()
    fresh.check()


INITIALIZE: dict[str, Any] = {
    "nothing": None,
    "an empty object": {},
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
    params = {
        "processId": 1.0,
        "clientInfo": {"name": "an editor", "version": "0.12.4"},
        "locale": "de",
        "trace": "off",
    }
    folders = [{"uri": "file:///project", "name": "project"}]
    more = {"rootPath": None, "rootUri": "file:///project", "workspaceFolders": folders}
    answer = fresh.ask("initialize", params | more | {"capabilities": capabilities})
    assert "inlineCompletionProvider" in answer["result"]["capabilities"]
    sync = answer["result"]["capabilities"]["textDocumentSync"]
    assert (sync["openClose"], sync["change"], sync["save"]) == (True, 2, True)
    fresh.check()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], "utf-16"),
        (["utf-8"], "utf-8"),
        (["utf-16"], "utf-16"),
        (["utf-32", "utf-8"], "utf-32"),
        (["utf-7"], "utf-16"),
        (["utf-7", "utf-8"], "utf-8"),
    ],
)
def test_position_encodings(fresh: Wire, offered: list[str], chosen: str) -> None:
    assert fresh.begin(*offered)["result"]["capabilities"]["positionEncoding"] == chosen
    fresh.check()


@pytest.mark.parametrize("options", [None, {}, [], 5, "x", {"push": "yes", "deadlineMs": -1}, {"unknown": {"a": 1}}])
def test_initialization_options_of_any_kind(fresh: Wire, options: Any) -> None:
    assert "result" in fresh.begin(options=options)
    fresh.check()


def test_initialize_twice(one: Wire) -> None:
    assert code(one.ask("initialize", initialize())) == INVALID_REQUEST


def test_requests_after_shutdown(one: Wire, servers: dict[str, Any]) -> None:
    with connected(servers["unix"]) as wire:
        wire.begin()
        assert wire.ask("shutdown")["result"] is None
        for method in (ASK, "shutdown", "initialize", "nothing/here"):
            assert code(wire.ask(method, asking())) == INVALID_REQUEST
        wire.send(notification("textDocument/didOpen", opening("file:///a.py", "x")))
        wire.send(notification("exit"))
        assert wire.receive() is None


@pytest.mark.parametrize("params", [None, {}, [], {"a": 1}])
def test_shutdown_takes_what_clients_send(fresh: Wire, params: object) -> None:
    fresh.begin()
    assert fresh.ask("shutdown", params)["result"] is None


def test_the_exit_of_one_editor_leaves_the_others(one: Wire, servers: dict[str, Any]) -> None:
    with connected(servers["unix"]) as other:
        other.begin()
        other.send(notification("exit"))
        assert other.receive() is None
    one.check()


def test_a_browser_is_not_served(servers: dict[str, Any], one: Wire) -> None:
    with connected(servers["tcp"]) as wire:
        body = framed(request(1, "initialize", initialize()))
        wire.send_bytes(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + body)
        assert wire.receive() is None
