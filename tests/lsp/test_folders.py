"""Folders that an editor adds and removes while the server runs, and cells of notebooks: what becomes context."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
MAIN = "from util import helper_of_ours\n\n\ndef main():\n    helper_of_ours(1)\n    \n"


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    (made / "util.py").write_text("def helper_of_ours(number):\n    return number + 1\n")
    return made


def change(e: Any, added: Sequence[Path] = (), removed: Sequence[Path] = ()) -> None:
    """What an editor sends when its user adds and removes folders."""
    event = types.WorkspaceFoldersChangeEvent(
        *([types.WorkspaceFolder(path.as_uri(), path.name) for path in each] for each in (added, removed))
    )
    e.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))


async def context_of(e: Any, uri: str, wanted: str) -> None:
    """Ask until the engine gets `wanted` as context, or the test fails. Nothing is typed: what is read is looked up."""
    with daemons.client() as client:
        for _ in range(100):
            await e.ask(5, 4, uri=uri, manual=True)
            parts = [part["text"] for body in client.get("/oracle")["asked"][-1:] for part in body["context"]]
            if any(wanted in part for part in parts):
                return
            await asyncio.sleep(0.1)
    pytest.fail(f"{wanted} was never context")


async def test_a_folder_that_is_added_is_read(editor: Any, tmp_path: Path) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    (second / "util.py").write_text("def helper_of_ours(other):\n    return other\n")
    main = (second / "main.py").as_uri()
    async with editor(oracle="nothing", root=first.as_uri()) as e:
        assert e.capabilities.workspace.workspace_folders.change_notifications
        e.open(MAIN, main)
        change(e, added=[second])
        await context_of(e, main, "helper_of_ours(other)")


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


async def test_cells_of_a_notebook_know_their_folder_and_each_other(editor: Any, tmp_path: Path) -> None:
    root = folder(tmp_path, "root")
    cells = [f"vscode-notebook-cell:{root}/book.ipynb#W{number}sZmlsZQ%3D%3D" for number in range(2)]
    async with editor(oracle="nothing", root=root.as_uri()) as e:
        e.open("def other_cell(number):\n    return helper_of_ours(number)\n\n\ndef main(number): ...\n", cells[0])
        e.open(MAIN, cells[1])
        await context_of(e, cells[1], "def helper_of_ours(number)")
        await context_of(e, cells[1], "def other_cell")
        with daemons.client() as client:
            assert {body["path"] for body in client.get("/oracle")["asked"]} == {"book.ipynb"}


async def test_cells_of_a_notebook_that_is_ignored_get_nothing(editor: Any, tmp_path: Path) -> None:
    root = folder(tmp_path, "root")
    (root / ".localdflashignore").write_text("*.ipynb\n")
    cell = f"vscode-notebook-cell:{root}/book.ipynb#W0sZmlsZQ%3D%3D"
    async with editor(oracle=MAIN + "rest", root=root.as_uri()) as e:
        e.open(MAIN, cell)
        assert await e.ask(5, 4, uri=cell, manual=True) is None
        assert ".localdflashignore" in (await e.status()).message
