"""VS Code with our extension and language server, driven by keys in a browser."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localdflash.lab.scripts.editors.fetch_vscode import ROOT, tools
from localdflash.lab.scripts.editors.vscode import Studio, VscodeWindow, studio, until

pytestmark = pytest.mark.editors

SHAPES = '''"""Shapes."""

import math


class Circle:
    """A circle."""

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def area(self) -> float:
        """The area."""
        return math.pi * self.radius**2'''
GREET = '''"""Greetings. 🙂"""


def greet(name: str) -> str:
    return f"Hello 🙂, {name}!"'''
BEFORE, _, METHOD = SHAPES.partition("    def area")
METHOD = "    def area" + METHOD
LAST = BEFORE.count("\n") + 1  # the empty line on which the method is typed


@pytest.fixture(scope="module")
def shared() -> Iterator[Studio]:
    """Start one code-server and one browser for this file; they take seconds to start."""
    found, extensions = tools(), sorted((ROOT / "editors" / "vscode").glob("*.vsix"))
    if found is None:
        pytest.skip("VS Code is not here: run lab/scripts/editors/fetch_vscode.py")
    if not extensions:
        pytest.skip("the extension is not built: run `make vsix`")
    sources = [path for path in extensions[-1].parent.glob("[spw]*/*") if path.suffix in (".ts", ".md")]
    newest = max(path.stat().st_mtime for path in [*sources, extensions[-1].parent / "package.json"])
    assert extensions[-1].stat().st_mtime >= newest, "the extension is older than its sources: run `make vsix`"
    with studio(found, extensions[-1], SHAPES, GREET) as running:
        yield running


@pytest.fixture
def code(shared: Studio) -> Iterator[Studio]:
    """Reset the settings before and after a test."""
    shared.configure()
    yield shared
    shared.configure()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with the beginnings of the texts that the engine knows."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "shapes.py").write_text(BEFORE, "utf-8")
    (made / "greet.py").write_text(GREET.partition("    return")[0], "utf-8")
    return made


@pytest.fixture
def window(code: Studio, folder: Path, request: pytest.FixtureRequest) -> Iterator[VscodeWindow]:
    """Open a window where the method can be typed; save a picture at the end."""
    with code.window(folder) as opened:
        opened.open("shapes.py", LAST)
        ready(opened)
        yield opened
        opened.picture(request.node.name.removeprefix("test_").partition("[")[0])


def ready(window: VscodeWindow) -> None:
    """Return the server's facts at once."""
    until(lambda: re.match(r"localdflash\. (Ready|Model)", window.details()), window.details)


def test_typing_along_keeps_the_suggestion_and_tab_takes_all_of_it(window: VscodeWindow) -> None:
    window.type("    def ar")
    window.shows(METHOD[10:])
    window.picture("suggestion")
    seen = window.frames()
    window.type("ea(")
    window.shows(METHOD[13:])
    assert seen() == [METHOD[start:] for start in (10, 11, 12, 13)]  # it never flickers
    window.press("Tab")
    window.holds("shapes.py", BEFORE + METHOD)
    assert window.ghost() == ""
    until(lambda: "1 accepted" in window.details(), window.details)


def test_a_word_then_a_line_then_the_rest(window: VscodeWindow) -> None:
    window.type("    def ar")
    window.shows(METHOD[10:])
    window.press("Control+ArrowRight")
    window.holds("shapes.py", BEFORE + "    def area")
    window.shows(METHOD[12:])
    window.press("Alt+End")
    head, _, body = METHOD.partition("\n")
    window.holds("shapes.py", BEFORE + head + "\n")
    window.shows(body)
    window.press("Tab")  # where indentation is suggested, the editor's Tab indents
    window.shows(body.lstrip())
    window.press("Tab")
    window.holds("shapes.py", BEFORE + METHOD)


@pytest.mark.parametrize(
    ("command", "says"), [("/nowhere/localdflash", "was not found"), ("/bin/false", "did not start")]
)
def test_a_command_that_does_not_work_is_said_once(code: Studio, window: VscodeWindow, command: str, says: str) -> None:
    code.configure(command=command)
    until(window.messages)
    window.type("    def ar")
    window.holds("shapes.py", BEFORE + "    def ar")
    (message,) = window.messages()
    assert command in message
    assert says in message
    assert says in window.details()
    window.command("localdflash: Status and Actions")
    window.page.locator(".quick-input-title", has_text=says).wait_for()
    window.press("Escape")
    code.configure()
    ready(window)
    window.type("e")
    window.shows(METHOD[11:])


def test_a_model_is_chosen_from_those_that_there_are(code: Studio, window: VscodeWindow) -> None:
    window.command("localdflash: Choose the Model")
    rows = window.page.locator(".quick-input-list .monaco-list-row")
    rows.filter(has_text="embedded").wait_for()
    assert "on this machine" in (rows.filter(has_text="embedded").text_content() or "")
    before = code.servers()
    rows.filter(has_text="embedded").click()
    until(lambda: code.servers() and not set(code.servers()) & set(before))
    ready(window)
    assert all("embedded" in psutil.Process(process).cmdline() for process in code.servers())


def snooze(window: VscodeWindow) -> None:
    """Snooze completions and return to the editor."""
    window.command("localdflash: Snooze Completions")
    window.page.locator(".quick-input-list .monaco-list-row", has_text="15 minutes").click()
    until(lambda: "snoozed until" in window.status(), window.status)
    window.page.locator(".editor-instance .monaco-editor.focused").wait_for()


def test_a_snooze_is_silent_until_it_ends(window: VscodeWindow) -> None:
    snooze(window)
    window.type("    def ar")
    window.page.wait_for_timeout(500)
    assert window.ghost() == ""
    window.press("Alt+\\")  # asked by hand, it answers
    window.shows(METHOD[10:])
    window.press("Escape")
    window.command("localdflash: End the Snooze")
    ready(window)
    window.page.locator(".editor-instance .monaco-editor.focused").wait_for()
    window.type("e")
    window.shows(METHOD[11:])
    until(lambda: window.status() == "oracle: ready", window.status)


def test_a_snooze_hides_next_edits(code: Studio, folder: Path) -> None:
    (folder / "rename.py").write_text("def double(number):\n    return 2 * number\n", "utf-8")
    with code.window(folder) as window:
        window.open("rename.py", 1, 12)
        ready(window)
        window.press("Control+Shift+ArrowRight")
        window.type("count")
        until(window.removed_text)
        snooze(window)
        until(lambda: not window.removed_text())
        window.command("localdflash: End the Snooze")
        until(window.removed_text)
        snooze(window)
        until(lambda: not window.removed_text())
        window.press("Tab")
        window.holds("rename.py", "def double(count    ):\n    return 2 * number\n")


@pytest.mark.parametrize("restricted", [False, True])
def test_a_folder_does_not_choose_what_is_executed(code: Studio, folder: Path, restricted: bool) -> None:
    trap, sprung = folder / "localdflash", folder / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    trap.chmod(0o755)
    theirs = {"localdflash.command": str(trap), "localdflash.arguments": ["--version"], "localdflash.pair": "theirs"}
    code.configure(restricted=restricted)
    with code.window(folder, **theirs) as window:
        window.open("shapes.py", LAST)
        ready(window)
        label = window.page.get_by_text("Restricted Mode", exact=True)
        label.first.wait_for(state="visible" if restricted else "hidden")
        window.type("    def ar")
        window.shows(METHOD[10:])
        assert folder not in [Path(psutil.Process(process).cwd()) for process in code.servers()]
    assert not sprung.exists()


def test_a_server_that_is_killed_comes_back_without_a_word(code: Studio, window: VscodeWindow) -> None:
    before = code.servers()
    for process in before:
        os.kill(process, signal.SIGKILL)
    until(lambda: "starting" in window.details(), window.details)
    ready(window)
    assert not set(code.servers()) & set(before)
    window.type("    def ar")
    window.shows(METHOD[10:])
    assert window.messages() == []


def test_cells_of_a_notebook_are_completed(code: Studio, folder: Path) -> None:
    cell: dict[str, object] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [cell | {"id": f"c{number}", "source": [text]} for number, text in enumerate(("", BEFORE))]
    about = {"language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    (folder / "book.ipynb").write_text(json.dumps(notebook))
    with code.window(folder) as window:
        window.press("Control+p")
        window.pick("book.ipynb", "book.ipynb")
        second = window.page.locator(".notebook-editor .cell .monaco-editor").nth(1)
        second.click()
        ready(window)
        window.press("Control+End")
        window.type("    def ar")
        window.shows(METHOD[10:])
        window.picture("notebook")
        window.press("Tab")
        until(lambda: "1 accepted" in window.details(), window.details)


def test_a_language_is_turned_off_and_on(code: Studio, folder: Path) -> None:
    with code.window(folder, **{"localdflash.languages": {"python": False}}) as window:
        window.open("shapes.py", LAST)
        until(lambda: "off for python" in window.details(), window.details)
        seen = window.frames()
        window.type("    def ar")
        window.press("Alt+\\")
        window.command("localdflash: Turn This Language On or Off")
        ready(window)
        assert seen() == [""]
        window.type("e")
        window.shows(METHOD[11:])


def test_off_means_that_no_server_runs(code: Studio, window: VscodeWindow) -> None:
    until(code.servers)
    window.command("localdflash: Turn Completions On or Off")
    until(lambda: not code.servers())
    assert "Completions are off" in window.details()
    window.command("localdflash: Turn Completions On or Off")
    ready(window)
