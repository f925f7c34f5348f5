"""The Neovim plugin and its server: attached buffers, restarts, messages, and Neovim's own inline completion."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from localdflash.lab.scripts.editors import nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, SERVER, SETUP, EditorScene
from tests.editors.conftest import Begin, installed, type_def

pytestmark = pytest.mark.editors
BUILT_IN = """
vim.lsp.config('localdflash', {settings})
vim.lsp.enable('localdflash')
vim.lsp.inline_completion.enable()
vim.keymap.set('i', '<Tab>', function()
  if not vim.lsp.inline_completion.get() then return '<Tab>' end
end, { expr = true })
"""
WHOLE = "def add(first, second):\n" + BODY


def servers(scene: EditorScene) -> list[psutil.Process]:
    """Return the server processes of a Neovim."""
    found = []
    for process in psutil.Process(scene.editor.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [process] if str(SERVER) in process.cmdline() else []
    return found


def test_what_it_sends_at_the_start_and_where_it_runs(add: EditorScene) -> None:
    (begun,) = add.events("initialize")
    assert begun["options"] == {"push": True, "status": True, "nextEdit": True}
    assert begun["root"] == add.folder.as_uri()
    assert add.until_event("initialized")["encoding"] == "utf-8"
    (server,) = servers(add)  # not in the project, where Python may look for modules
    assert server.cwd() == add.editor.lua("return vim.uv.os_homedir()") != str(add.folder)


def test_a_renamed_file_is_closed_and_opened_under_its_new_name(add: EditorScene) -> None:
    add.editor.keys("<Esc>")
    add.editor.command(f"file {add.folder / 'renamed.py'}")
    add.until_event("close", uri=(add.folder / "add.py").as_uri())
    add.until_event("open", uri=(add.folder / "renamed.py").as_uri())
    add.editor.until_attached()
    add.editor.keys("i")
    add.editor.until_ghost(WHOLE)


def test_a_buffer_without_a_name_gets_a_server_when_somebody_types_there(scene: Begin) -> None:
    with scene(ADD) as begun:
        assert not servers(begun)
        begun.editor.keys("i")
        begun.editor.until_attached()
        begun.editor.type("def")
        begun.editor.until_ghost(WHOLE[3:])
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == WHOLE)
        begun.editor.keys("<Esc>")
        begun.editor.command(f"write {begun.folder / 'named.py'}")
        begun.until_event("close", uri="file://")
        begun.until_event("open", uri=(begun.folder / "named.py").as_uri())
        begun.editor.until_attached()
        begun.editor.keys("ccdef")
        begun.until_event("request", text=f"{WHOLE.rpartition('    ')[0]}    def\n")


@pytest.mark.parametrize("name", ["", "script"])
def test_a_new_filetype_is_sent_to_the_server(scene: Begin, name: str) -> None:
    with scene(ADD) as begun:
        if name:
            begun.open(name)
        begun.editor.keys("i")
        begun.editor.until_attached()
        begun.editor.type("def")
        begun.until_event("open", language="")
        begun.editor.command("set filetype=python")
        begun.until_event("open", language="python")
        begun.editor.type(" ")
        begun.editor.until_ghost(WHOLE[4:])
        assert [event["event"] for event in begun.events("open", "close")] == ["open", "close", "open"]


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ("let b:localdflash_enabled = v:false", "unlet b:localdflash_enabled"),
        ("set filetype=text", "set filetype=python"),
    ],
)
def test_an_open_file_is_turned_off_and_on(scene: Begin, off: str, on: str) -> None:
    with scene(ADD, filetypes={"text": False}) as begun:
        type_def(begun)
        begun.editor.command(off)
        asked = len(begun.events("request"))
        begun.editor.type(" ")
        assert begun.editor.ghost() == ""
        begun.editor.keys("<Esc>A")
        begun.until_event("close")
        assert begun.editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0
        assert len(begun.events("request")) == asked
        begun.editor.command(on)
        begun.editor.keys("<Esc>A")
        begun.editor.until_ghost(WHOLE[4:])


def test_no_server_for_what_is_no_file(add: EditorScene) -> None:
    add.editor.keys("<Esc>")
    for command in (
        "enew",
        "enew | file scp://host/file.py",
        "enew | set buftype=nofile | file scratch",
        "terminal true",
    ):
        add.editor.command(command)
        add.editor.command("doautocmd <nomodeline> BufEnter")
        assert add.editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0


def test_a_killed_server_comes_back_and_is_reported_once(add: EditorScene) -> None:
    for _ in range(3):
        (server,) = servers(add)
        add.editor.lua("ids = #vim.lsp.get_clients({bufnr = 0})")
        os.kill(server.pid, signal.SIGKILL)
        add.editor.until(lambda: server.pid not in [other.pid for other in servers(add)])  # noqa: B023
        add.editor.type("xy")
        assert add.editor.ghost() == ""
        add.editor.until(lambda: len(servers(add)) == 1)
        add.editor.until_attached()
        add.editor.keys("<BS><BS>")
        add.editor.until_ghost(WHOLE)
    (message,) = add.editor.messages()
    assert "ended (signal 9)" in message
    assert add.editor.lua("return vim.fn.execute('messages')") == ""


def test_a_server_that_is_not_installed_is_reported_once(scene: Begin) -> None:
    setup = SETUP.replace("{settings}", "{cmd = {'no-such-program', 'lsp'}}")
    with scene(ADD, setup=setup) as begun:
        for name in ("a.py", "b.py"):
            (begun.folder / name).write_text("")
            begun.editor.command(f"edit {begun.folder / name}")
            begun.editor.keys("ix<Esc>")
            begun.editor.command("write")
        (message,) = begun.editor.messages()
        assert "no-such-program is not on PATH" in message


def test_the_status_line_shows_what_the_server_reports(add: EditorScene) -> None:
    line = "return require('localdflash').status()"
    add.editor.command("set statusline=%{%v:lua.require'localdflash'.status()%}")
    add.editor.until(lambda: add.editor.lua(line) == "scripted τ 2.9 41 tok/s 0/0")  # asked for: nothing changed yet
    add.tell("test/tell", tau=3.1, shown=30, accepted=12, model="50% \x1b[31m")
    add.editor.until(lambda: add.editor.lua(line) == "50%% ^[[31m τ 3.1 41 tok/s 12/30")
    add.editor.until(lambda: any("50% ^[[31m τ 3.1" in row for row in add.editor.screen.rows()))
    add.tell("test/tell", tau=None, tokensPerSecond=None, shown=0, accepted=0, model="")  # before the first answer
    add.editor.until(lambda: add.editor.lua(line) == "localdflash 0/0")
    add.tell("test/tell", kind="Error", message="run: localdflash models pull x")
    add.editor.until(lambda: add.editor.lua(line) == "localdflash: run: localdflash models pull x")


def test_a_wrong_setting_is_named(scene: Begin) -> None:
    with scene(ADD) as begun:
        for settings, says in {
            "{dely = 3}": "no setting dely",
            "{delay = 'x'}": "delay must be a number",
            "{keys = {acept = 'x'}}": "no key acept",
            "{cmd = 'localdflash lsp'}": "cmd must be a table",
        }.items():
            begun.editor.lua(f"ok, why = pcall(function() require('localdflash').setup({settings}) end)")
            assert says in begun.editor.lua("return why")


def test_neovim_0_10_the_oldest_supported(tmp_path: Path) -> None:
    with nvim_scene.scene(installed("neovim", "trixie"), tmp_path, ADD) as begun:
        type_def(begun)
        begun.editor.type(" a")
        assert begun.editor.ghost() == WHOLE[5:]
        begun.editor.keys("<C-Right>")
        begun.editor.until(lambda: begun.editor.text() == "def add")
        begun.until_event("didPartiallyAcceptCompletion")
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == WHOLE)
        begun.until_event("accept")
        begun.editor.keys("<Esc>u")
        assert begun.editor.text() == "def add"
        begun.editor.command("checkhealth localdflash")
        assert "ERROR" not in begun.editor.text()
        assert begun.editor.messages() == []


def test_off_and_on_again(add: EditorScene) -> None:
    add.editor.command("Localdflash disable")
    assert add.editor.ghost() == ""
    add.editor.until(lambda: not servers(add))
    assert add.editor.lua("return require('localdflash').status()") == "localdflash off"
    add.editor.until(lambda: add.editor.lua("return #vim.lsp.get_clients()") == 0)
    add.editor.type("d")  # Neovim has to tell the next server what comes after this, too
    add.editor.command("Localdflash toggle")
    add.editor.until_attached()
    add.editor.type("ef")
    add.editor.until_ghost(WHOLE[3:])
    (before,) = servers(add)
    add.editor.command("Localdflash restart")
    add.editor.until(lambda: [s.pid for s in servers(add)] not in ([], [before.pid]) and len(servers(add)) == 1)
    add.editor.until_attached()
    add.editor.type(" ")
    add.editor.until_ghost(WHOLE[4:])
    assert add.editor.messages() == []


def test_the_plugin_and_vim_lsp_enable_start_one_server(scene: Begin) -> None:
    enabled = "vim.lsp.config('localdflash', { cmd = {settings}.cmd }); vim.lsp.enable('localdflash')"
    with scene(ADD, setup=f"{SETUP}\n{enabled}") as begun:
        type_def(begun)
        assert len(begun.events("initialize")) == 1
        assert len(servers(begun)) == 1


def test_neovims_inline_completion_needs_no_plugin(nvim: Path, tmp_path: Path) -> None:
    with nvim_scene.scene(nvim, tmp_path, ADD, setup=BUILT_IN) as begun:
        type_def(begun)
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == "def add(first, second):\n" + BODY)
        begun.until_event("accept")
        assert begun.events("initialize")[0]["options"] is None
