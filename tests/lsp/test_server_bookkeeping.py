"""The server's state of documents, items and requests: nothing stale, nothing secret, nothing counted twice."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types

from localdflash.lsp import request_context as context_module
from localdflash.lsp.document import Document
from localdflash.lsp.lsp_server import SuggestionServer
from localdflash.lsp.lsp_settings import LspSettings
from localdflash.lsp.request_context import EditorContext
from localdflash.server.wanted import Wanted
from tests.lsp.conftest import URI, until
from tests.lsp.test_server import BODY, HOLE, TEXT, inserted
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]


async def test_secret_files_get_nothing_wherever_they_are(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        for uri in ("untitled:.env", "untitled:/home/me/.ssh/config", "file:///c%3A/Users/me/.aws/credentials"):
            e.open(HOLE, uri)
            e.edit(4, 4, "x", uri=uri)
            assert await e.ask(4, 5, uri=uri) is None
        with daemons.client() as client:
            assert client.get("/oracle")["asked"] == []


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


async def test_a_document_that_is_opened_again_is_another_one(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=200, options={"push": True}) as e:
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY.split("\n")[0]
        e.open("# nothing\n" * 20)
        await e.status()
        e.updates.clear()
        await asyncio.sleep(0.3)
        assert e.updates == []
        with daemons.client() as client:
            assert client.get("/oracle")["live"] == 0


async def test_a_new_line_with_its_indentation_is_typed_and_not_accepted(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        await e.ask(4, 4)
        for key in BODY.split("\n")[0].strip():
            e.edit(4, e.version + 4, key)
        e.edit(4, e.version + 4, "\n    ")
        assert (await e.status()).accepted == 0


async def test_only_offered_suggestions_are_counted(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        (item,) = (await e.ask(4, 4)).items
        item.command.arguments = ["nobody"]
        for method in ("textDocument/didShowCompletion", "textDocument/didPartiallyAcceptCompletion"):
            e.tell(method, item)
        status = await e.status()
        assert (status.shown, status.accepted) == (1, 0)


def test_a_suggestion_accepted_in_parts_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server, learned = SuggestionServer(Wanted({})), list[int]()
    monkeypatch.setattr(server.pace, "accepted", lambda: learned.append(1))
    server.tally.offered("1")
    for name in ("1", "1", "2"):
        server.accepted(name)
    assert learned == [1]


def test_two_windows_of_one_process_do_not_cancel_each_other() -> None:
    documents = []
    for _ in range(2):
        server = SuggestionServer(Wanted({}))
        server._context = SimpleNamespace(describe=lambda _: {})  # type: ignore[assignment]
        documents.append(server._describe(URI)["document"])
    assert len(set(documents)) == 2


async def test_the_status_does_not_stay_busy(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=5_000, options={"status": True, "deadlineMs": 9_000}) as e:
        e.open(HOLE)
        waiting = asyncio.ensure_future(e.ask(4, 4))
        await until(lambda: e.statuses and e.statuses[-1].busy)
        e.edit(0, 0, "# something else\n")
        assert await waiting is None
        await until(lambda: not e.statuses[-1].busy)
        told = len(e.statuses)
        await asyncio.sleep(0.7)
        assert len(e.statuses) == told


async def test_lines_that_end_with_cr_are_completed_like_any(editor: Any) -> None:
    async with editor(oracle="# one\n" * 5_000 + TEXT) as e:
        e.open(("# one\n" * 5_000 + HOLE).replace("\n", "\r"))
        assert inserted(await e.ask(5_004, 4)) == BODY
        with daemons.client() as client:
            assert all(len(asked["prefix"]) <= 16_000 for asked in client.get("/oracle")["asked"])


def test_a_deadline_that_is_no_number() -> None:
    settings, wrong = LspSettings.of(json.loads('{"deadlineMs": NaN}'))
    assert wrong or 50 <= settings.deadline_ms <= 10_000


async def test_other_files_are_looked_up_one_by_one_and_with_line_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def gather(_workspace: Any, current: Any, _line: int, others: Any, *_: Any) -> list[Any]:
        seen.extend((file.name, file.text) for file in (current, *others))
        return []

    monkeypatch.setattr(context_module, "gather", gather)
    uris = [(tmp_path / name).as_uri() for name in ("a.py", "b.py", "c.py")]
    context = EditorContext([tmp_path], {uri: Document(uri, "x\r\ny\r", 1) for uri in uris}, lambda _: None)
    context.opened(uris[2])
    await asyncio.gather(*(context.look(uri, 0) for uri in uris[:2]))
    assert seen == [(name, "x\ny\n") for name in ("a.py", "c.py", "b.py", "c.py")]


async def test_edits_of_files_that_are_no_longer_allowed_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, other, untitled = (tmp_path / "a.py").as_uri(), (tmp_path / "b.py").as_uri(), "untitled:Untitled-1"
    documents = {one: Document(one, "x = 1\n", 1) for one in (uri, other, untitled)}
    context = EditorContext([tmp_path], documents, lambda _: None)
    for one in (uri, untitled):
        context.changed(Document(one, "", 1), 0, ["CANARY of " + one], ["x"])
    assert len(context.describe(other)["copies"]) == 2
    context.closed(untitled)  # it may be saved as anything
    assert len(context.describe(other)["copies"]) == 1
    monkeypatch.setattr(context._workspace, "allowed_name", lambda name: name != "a.py")
    await context.look(other, 0)
    assert context.describe(other)["copies"] == []
