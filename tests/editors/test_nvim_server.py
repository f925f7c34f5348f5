"""The plugin and its server: which buffers it gets, how it ends and comes back, what the user is told."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import pytest

from localdflash.lab.scripts.editors import nvim_scene
from localdflash.lab.scripts.editors.nvim import PLUGIN
from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, SERVER, Scene

pytestmark = pytest.mark.editors
Begin = Callable[..., AbstractContextManager[Scene]]
WHOLE = "def add(first, second):\n" + BODY


def servers(scene: Scene) -> list[psutil.Process]:
    """The server processes of this Neovim."""
    found = []
    for process in psutil.Process(scene.editor.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [process] if str(SERVER) in process.cmdline() else []
    return found


def test_it_asks_for_pushes_and_utf8(add: Scene) -> None:
    (begun,) = add.events("initialize")
    assert begun["options"] == {"push": True, "status": True, "nextEdit": True}
    assert begun["root"] == add.folder.as_uri()
    assert add.until_event("initialized")["encoding"] == "utf-8"


def test_it_does_not_run_in_the_project_where_python_may_look_for_modules(add: Scene) -> None:
    (server,) = servers(add)
    assert server.cwd() == add.editor.lua("return vim.uv.os_homedir()") != str(add.folder)


def test_two_buffers_share_a_server(add: Scene) -> None:
    add.editor.keys("<Esc>")
    add.open("other.py")
    add.editor.keys("i")
    add.editor.until_ghost(WHOLE)
    add.editor.keys("<Esc>")
    add.open("add.py")
    assert add.editor.ghost() == ""
    add.editor.keys("i")
    add.editor.until_ghost(WHOLE)
    assert len(servers(add)) == 1


def test_leaving_a_buffer_while_inserting_hides_its_suggestion(add: Scene) -> None:
    add.editor.keys("<Cmd>new<CR>")
    shown = "local n = vim.api.nvim_get_namespaces().localdflash; local all = {}\n"
    shown += "for _, b in ipairs(vim.api.nvim_list_bufs()) do\n"
    shown += "vim.list_extend(all, vim.api.nvim_buf_get_extmarks(b, n, 0, -1, {})) end return #all"
    assert add.editor.lua(shown) == 0


def test_a_renamed_file_is_closed_and_opened_under_its_new_name(add: Scene) -> None:
    add.editor.keys("<Esc>")
    add.editor.command(f"file {add.folder / 'renamed.py'}")
    add.until_event("close", uri=(add.folder / "add.py").as_uri())
    add.until_event("open", uri=(add.folder / "renamed.py").as_uri())
    add.editor.until_attached()
    add.editor.keys("i")
    add.editor.until_ghost(WHOLE)


def test_a_deleted_file_can_still_be_written_in(add: Scene) -> None:
    (add.folder / "add.py").unlink()
    add.editor.type("def")
    add.editor.until_ghost(WHOLE[3:])
    add.editor.keys("<Tab>")
    add.editor.until(lambda: add.editor.text() == WHOLE)


def test_a_file_saved_under_another_name(add: Scene) -> None:
    add.editor.keys("<Esc>")
    add.editor.command(f"saveas {add.folder / 'copy.py'}")
    add.until_event("open", uri=(add.folder / "copy.py").as_uri())
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


def test_two_buffers_without_a_name_are_not_mixed_up(scene: Begin) -> None:
    with scene(ADD) as begun:
        begun.editor.keys("i")
        begun.editor.until_attached()
        begun.editor.type("first")
        begun.editor.keys("<Esc>")
        begun.editor.command("set hidden | enew")
        begun.editor.keys("i")
        begun.editor.until_attached()
        begun.editor.type("d")
        begun.editor.until_ghost(WHOLE[1:])
        begun.editor.keys("<Esc>")
        begun.editor.command("buffer 1")
        begun.editor.keys("A")
        begun.editor.until_attached()
        begun.editor.type("!")
        begun.until_event("request", text="first!\n")
        begun.editor.keys("<BS>" * len("first!") + "def")
        begun.editor.until_ghost(WHOLE[3:])


def test_no_server_for_what_is_no_file(add: Scene) -> None:
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


def test_no_server_where_none_is_wanted(scene: Begin) -> None:
    with scene(ADD, filetypes={"*": True, "text": False}) as begun:
        begun.open("add.py")
        (begun.folder / "secret.txt").write_text("x")
        begun.editor.command(f"edit {begun.folder / 'secret.txt'}")
        assert begun.editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0
        begun.editor.command("autocmd BufReadPre *.rs let b:localdflash_enabled = v:false")
        (begun.folder / "main.rs").write_text("x")
        begun.editor.command(f"edit {begun.folder / 'main.rs'}")
        assert begun.editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0


def test_a_file_too_large_to_send_is_left_alone(add: Scene) -> None:
    add.editor.keys("<Esc>")
    (add.folder / "large.py").write_text("x = 1\n" * 1_000_000)
    add.editor.command(f"edit {add.folder / 'large.py'}")
    assert add.editor.lua("return #vim.lsp.get_clients({bufnr = 0})") == 0
    assert add.editor.messages() == []


def test_a_killed_server_comes_back_and_is_reported_once(add: Scene) -> None:
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


def test_a_server_that_always_ends_is_tried_less_and_less(scene: Begin, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    code = f"open({str(tries)!r}, 'a').write('x'); raise SystemExit(3)"
    setup = nvim_scene.SETUP.replace("{settings}", "cmd_of({settings})")
    setup = f"function cmd_of(s) s.cmd = {{ {sys.executable!r}, '-c', {code!r} }} return s end\n{setup}"
    with scene(ADD, setup=setup) as begun:
        (begun.folder / "add.py").write_text("")
        begun.editor.command(f"edit {begun.folder / 'add.py'}")
        begun.editor.keys("i")
        begun.editor.until(lambda: tries.exists() and len(tries.read_text()) >= 3)
        begun.editor.type("def")
        begun.editor.lua("vim.wait(300)")
        assert len(tries.read_text()) <= 4
        (message,) = begun.editor.messages()
        assert "exit code 3" in message
        assert begun.editor.lua("return vim.fn.execute('messages')") == ""
        assert "ended" in begun.editor.lua("return require('localdflash').status()")


def test_a_server_that_is_not_installed_is_reported_once(scene: Begin) -> None:
    setup = nvim_scene.SETUP.replace("{settings}", "{cmd = {'no-such-program', 'lsp'}}")
    with scene(ADD, setup=setup) as begun:
        for name in ("a.py", "b.py"):
            (begun.folder / name).write_text("")
            begun.editor.command(f"edit {begun.folder / name}")
            begun.editor.keys("ix<Esc>")
            begun.editor.command("write")
        (message,) = begun.editor.messages()
        assert "no-such-program is not on PATH" in message


def test_off_and_on_again(add: Scene) -> None:
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


def test_the_status_line_shows_what_the_server_reports(add: Scene) -> None:
    line = "return require('localdflash').status()"
    add.editor.command("set statusline=%{%v:lua.require'localdflash'.status()%}")
    add.editor.until(lambda: add.editor.lua(line) == "scripted τ 2.9 41 tok/s 0/0")  # asked for: nothing changed yet
    add.tell("test/tell", tau=3.1, shown=30, accepted=12, model="50% \x1b[31m")
    add.editor.until(lambda: add.editor.lua(line) == "50%% ^[[31m τ 3.1 41 tok/s 12/30")
    add.editor.until(lambda: any("50% ^[[31m τ 3.1" in row for row in add.editor.screen.rows()))
    add.tell("test/tell", tau=None, tokensPerSecond=None, shown=0, accepted=0, model="")  # before the first answer
    add.editor.until(lambda: add.editor.lua(line) == "localdflash 0/0")
    add.tell("test/tell", kind="Warning", message="run: localdflash models pull x")
    add.editor.until(lambda: add.editor.lua(line) == "localdflash: run: localdflash models pull x")


def test_the_status_says_why_this_buffer_gets_nothing(scene: Begin) -> None:
    line = "return require('localdflash').status()"
    with scene(ADD, filetypes={"*": True, "text": False}) as begun:
        begun.open("add.py")
        begun.tell("test/tell", kind="Inactive", message=".gitignore names this file")
        begun.editor.until(lambda: begun.editor.lua(line) == "localdflash: .gitignore names this file")
        begun.tell("test/tell", kind="Normal", message="")
        (begun.folder / "notes.txt").write_text("x")
        begun.editor.command(f"edit {begun.folder / 'notes.txt'}")
        assert begun.editor.lua(line) == "localdflash: off for text files"
        assert "this buffer: off for text files" in begun.editor.lua("return vim.fn.execute('Localdflash status')")
        begun.editor.command("let b:localdflash_enabled = v:false")
        assert begun.editor.lua(line) == "localdflash: off by b:localdflash_enabled"
        (begun.folder / "large.py").write_text("x = 1\n" * 1_000_000)
        begun.editor.command(f"edit {begun.folder / 'large.py'}")
        assert begun.editor.lua(line) == "localdflash: larger than 4 MB"
        begun.editor.command("enew | file scp://host/file.py")
        assert "this buffer: not a file here" in begun.editor.lua("return vim.fn.execute('Localdflash status')")


def test_the_status_command_says_all_of_it(add: Scene) -> None:
    add.tell("test/tell", tau=None, tokensPerSecond=None)
    add.editor.until(lambda: "τ" not in add.editor.lua("return require('localdflash').status()"))
    said = add.editor.lua("return vim.fn.execute('Localdflash status')")
    assert "model: scripted" in said
    assert "τ): unknown" in said
    add.editor.command("Localdflash nonsense")
    assert "no command nonsense" in add.editor.messages()[-1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("{dely = 3}", "no setting dely"),
        ("{delay = 'x'}", "delay must be a number"),
        ("{keys = {acept = 'x'}}", "no key acept"),
        ("{cmd = 'localdflash lsp'}", "cmd must be a table"),
    ],
)
def test_a_wrong_setting_is_named(scene: Begin, settings: str, says: str) -> None:
    setup = f"ok, why = pcall(function() require('localdflash').setup({settings}) end)"
    with scene(ADD, setup=setup) as begun:
        assert says in begun.editor.lua("return why")


def test_health(add: Scene) -> None:
    add.editor.keys("<Esc>")
    add.editor.command("checkhealth localdflash")
    report = add.editor.text()
    assert "ERROR" not in report
    assert "model: scripted" in report


def test_the_help_has_its_tags(add: Scene) -> None:
    add.editor.keys("<Esc>")
    copy = shutil.copytree(PLUGIN / "doc", add.folder / "doc")
    add.editor.command(f"helptags {copy}")
    tags = (copy / "tags").read_text("utf-8")
    assert all(f"localdflash-{section}\t" in tags for section in ("setup", "keys", "settings", "commands", "builtin"))


def test_the_oldest_neovim(old_nvim: Path, tmp_path: Path) -> None:
    with nvim_scene.scene(old_nvim, tmp_path, ADD) as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.type("def")
        begun.editor.until_ghost(WHOLE[3:])
        begun.editor.type(" a")
        assert begun.editor.ghost() == WHOLE[5:]
        begun.editor.keys("<C-Right>")
        begun.editor.until(lambda: begun.editor.text() == "def add")
        assert begun.until_event("didPartiallyAcceptCompletion")["length"] == 7
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == WHOLE)
        begun.until_event("accept")
        begun.editor.keys("<Esc>u")
        assert begun.editor.text() == "def add"
        begun.editor.command("checkhealth localdflash")
        assert "ERROR" not in begun.editor.text()
        assert begun.editor.messages() == []
