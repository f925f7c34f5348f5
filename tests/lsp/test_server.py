"""Completions in an editor, over the wire, from an engine that knows the text."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types

from localdflash.code.context.index import Workspace
from localdflash.lsp import request_context
from localdflash.lsp.document import Document
from localdflash.lsp.lsp_server import SuggestionServer
from localdflash.lsp.request_context import EditorContext
from localdflash.server.engine_spec import EngineSpec
from tests.lsp.conftest import URI, until
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

TEXT = '''import os


def add(first, second):
    """Return the sum."""
    total = first + second
    return total


print(add(1, 2))
'''
BODY = '    """Return the sum."""\n    total = first + second\n    return total'
HOLE = TEXT.replace(BODY + "\n", "    \n")  # the cursor is at 4:4


def inserted(answer: Any) -> str:
    (item,) = answer.items
    return str(item.insert_text)


async def test_an_answer_replaces_the_line_up_to_the_cursor(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        answer = await e.ask(4, 4)
        assert inserted(answer) == BODY
        (item,) = answer.items
        assert (item.range.start.line, item.range.start.character) == (4, 0)
        assert (item.range.end.line, item.range.end.character) == (4, 4)
        e.edit(4, 4, '"""Re')
        assert inserted(await e.ask(4, 9)) == BODY


@pytest.mark.parametrize(
    ("rest", "text", "end"), [("", "print(add(1, 2))", len("print(add())")), ("  # three", "print(add(1, 2", 10)]
)
async def test_closing_brackets_of_the_editor_are_replaced(editor: Any, rest: str, text: str, end: int) -> None:
    whole = TEXT.replace("2))", "2))" + rest)
    async with editor(oracle=whole) as e:
        e.open(whole.replace("add(1, 2))", "add())"))
        answer = await e.ask(9, 10)
        assert inserted(answer) == text
        assert answer.items[0].range.end.character == end


async def test_an_answer_grows_for_clients_with_push(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=50, options={"push": True}) as e:
        e.open(HOLE)
        first, *_ = BODY.split("\n")
        assert inserted(await e.ask(4, 4)) == first
        await until(lambda: e.updates and e.updates[-1].items[0].insertText == BODY)
        texts = [update.items[0].insertText for update in e.updates]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
        assert {update.textDocument.version for update in e.updates} == {0}
        assert {update.position.line for update in e.updates} == {4}


async def test_an_answer_continues_the_selected_item_of_a_menu_but_not_its_word(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("total = first + second", "total = fi"))
        place = types.Range(types.Position(5, 12), types.Position(5, 14))
        (item,) = (await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "first"))).items
        assert (item.insert_text, item.range) == ("first + second", place)
        assert await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "fir")) is None


async def test_accepted_and_refused_suggestions_are_counted(editor: Any) -> None:
    async with editor(oracle=TEXT, options={"status": True}) as e:
        e.open(HOLE)
        (item,) = (await e.ask(4, 4)).items
        e.tell("textDocument/didShowCompletion", item)
        e.tell("textDocument/didPartiallyAcceptCompletion", item)
        status = await e.status()
        assert (status.kind, status.shown, status.accepted) == ("Normal", 1, 1)
        await e.client.workspace_execute_command_async(
            types.ExecuteCommandParams(item.command.command, list(item.command.arguments))
        )
        assert (await e.status()).accepted == 1  # the same one
        e.tell("localdflash/didRejectCompletion", item)
        assert await e.ask(4, 4) is None
        await until(lambda: e.statuses)
        assert e.statuses[-1].tau == 3.0
        assert e.statuses[-1].tokensPerSecond == 1000.0


async def test_keys_that_come_together_accept_nothing(editor: Any) -> None:
    async with editor(oracle=TEXT, options={"status": True}) as e:
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
        e.type(4, 4, '"""Re')
        assert inserted(await e.ask(4, 9)) == BODY
        assert (await e.status()).accepted == 0
        e.edit(4, 9, "turn")
        assert (await e.status()).accepted == 1


async def test_the_first_request_has_the_context_of_its_own_line(editor: Any) -> None:
    async with editor(oracle="nothing", options={"deadlineMs": 10_000}) as e:
        e.open("def parse_header(reader, token):\n    return reader.skip(token)\n", "file:///project/other.py")
        e.open("x = 1\n" * 300 + "parse_header(reader, token)\n\n", URI)
        await e.ask(301, 0)
        with daemons.client() as client:
            (asked,) = client.get("/oracle")["asked"]
        assert [part["name"] for part in asked["context"]] == ["other.py"]


async def test_requests_at_one_place_share_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[object] = []
    monkeypatch.setattr(request_context, "gather", lambda *_: lookups.append(1))
    context = EditorContext([], {URI: Document(URI, TEXT, 1)}, lambda _: None)
    await asyncio.gather(*(context.look_up(URI, 4, if_far=True) for _ in range(3)))
    assert len(lookups) == 1
    await context.look_up(URI, 4)
    assert len(lookups) == 2


async def test_an_odd_uri_is_no_error(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        logged: list[Any] = []

        @e.client.feature(types.WINDOW_LOG_MESSAGE)  # type: ignore[untyped-decorator]
        def log(message: types.LogMessageParams) -> None:
            logged.append(message)

        for uri in ("file://[::1/a.py", "http://[x", "file:///a%00.py", "", ":", "file:"):
            e.open(HOLE, uri)
            e.edit(4, 4, '"', uri=uri)
            await e.ask(4, 5, uri=uri)
            e.close(uri)
        assert logged == []
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY


def test_two_windows_of_one_process_do_not_cancel_each_other() -> None:
    documents = []
    for _ in range(2):
        server = SuggestionServer(EngineSpec({}))
        server._context = SimpleNamespace(describe=lambda _: {})  # type: ignore[assignment]
        documents.append(server._describe(URI)["document"])
    assert len(set(documents)) == 2


async def test_edits_of_files_that_are_no_longer_allowed_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, other, untitled = (tmp_path / "a.py").as_uri(), (tmp_path / "b.py").as_uri(), "untitled:Untitled-1"
    documents = {one: Document(one, "x = 1\n", 1) for one in (uri, other, untitled)}
    context = EditorContext([tmp_path], documents, lambda _: None)
    for one in (uri, untitled):
        context.changed(Document(one, "", 1), [(0, ["CANARY of " + one], ["x"])])
    assert len(context.describe(other)["copies"]) == 2
    context.closed(untitled)  # it may be saved as anything
    assert len(context.describe(other)["copies"]) == 1
    monkeypatch.setattr(context._workspace, "allowed_name", lambda name: name != "a.py")
    await context.look_up(other, 0)
    assert context.describe(other)["copies"] == []


def test_a_folder_within_another_is_part_of_it(tmp_path: Path) -> None:
    uri = (tmp_path / "pkg/a.py").as_uri()
    for folders in ([tmp_path, tmp_path / "pkg"], [tmp_path / "pkg", tmp_path]):
        context = EditorContext(folders, {uri: Document(uri, "", 1)}, lambda _: None)
        assert context.describe(uri)["path"] == "pkg/a.py"  # as in the index


MAIN = "from util import helper_of_ours\n\n\ndef main():\n    helper_of_ours(1)\n    \n"


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    (made / "util.py").write_text("def helper_of_ours(number):\n    return number + 1\n")
    return made


def change(e: Any, added: Sequence[Path] = (), removed: Sequence[Path] = ()) -> None:
    """Build the notification of added and removed workspace folders."""
    event = types.WorkspaceFoldersChangeEvent(
        *([types.WorkspaceFolder(path.as_uri(), path.name) for path in each] for each in (added, removed))
    )
    e.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))


async def test_the_rules_of_a_folder_hold_once_it_is_added_and_no_longer_when_it_is_removed(
    editor: Any, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    (second / ".gitignore").write_text("made.py\n")
    made = (second / "made.py").as_uri()
    async with editor(oracle=MAIN + "rest", root=first.as_uri()) as e:
        e.open(MAIN, made)
        await e.ask(5, 4, uri=made)
        assert (await e.status()).kind == "Normal"
        change(e, added=[second])
        await e.ask(5, 4, uri=made)
        assert ".gitignore" in (await e.status()).message
        change(e, removed=[second])
        await e.ask(5, 4, uri=made)
        assert (await e.status()).kind == "Normal"


async def test_the_root_of_the_disk_is_not_indexed(editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = list[Any]()
    monkeypatch.setattr(Workspace, "start", lambda self, _: indexed.extend(self._roots))
    async with editor(oracle=TEXT, root="file:///") as e:
        change(e, added=[Path("/")])
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
    assert indexed == []


async def test_cells_of_a_notebook_that_is_ignored_get_nothing(editor: Any, tmp_path: Path) -> None:
    root = folder(tmp_path, "root")
    (root / ".localdflashignore").write_text("*.ipynb\n")
    cell = f"vscode-notebook-cell:{root}/book.ipynb#W0sZmlsZQ%3D%3D"
    async with editor(oracle=MAIN + "rest", root=root.as_uri()) as e:
        e.open(MAIN, cell)
        assert await e.ask(5, 4, uri=cell, manual=True) is None
        assert ".localdflashignore" in (await e.status()).message
