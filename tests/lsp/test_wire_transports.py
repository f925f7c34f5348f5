"""Ends of connections and of the process, who may connect, and what goes to stdout."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localdflash.cli import main
from tests.lsp.wire import Process, asking, connected, notification, request, serving
from tests.support import daemons

CHATTY = (
    "import os, sys, localdflash.lsp.lsp_server as s; d = s.SuggestionServer.__init__;"
    "s.SuggestionServer.__init__ = lambda *a: (d(*a), print('a stray print'), os.write(1, b'another'), None)[-1];"
) + daemons.PROGRAM

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with daemons.short_home(monkeypatch) as home:
        yield home


def ended(wire: Process) -> int:
    code, err = wire.end()
    assert err == ""
    return code


def test_exit_codes_by_exit_and_by_the_end_of_stdin() -> None:
    with serving() as wire:
        wire.begin()
        assert wire.leave() == (0, "")
    with serving() as wire:
        wire.begin()
        wire.ask("shutdown")
        assert ended(wire) == 0  # communicate closes stdin
    for messages in (["begin", "exit"], ["exit"], ["begin"], []):  # LSP allows `exit` before `initialize`
        with serving() as wire:
            if "begin" in messages:
                wire.begin()
            if "exit" in messages:
                wire.send(notification("exit"))
            assert ended(wire) == 1


def test_the_death_of_the_editor_ends_it() -> None:
    editor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with serving() as wire:
        wire.begin(process_id=editor.pid)
        wire.check()
        editor.communicate(b"\n")
        assert wire.receive() is None
        assert ended(wire) == 1


def test_nothing_but_lsp_goes_to_stdout() -> None:
    with serving(program=CHATTY) as wire:
        wire.begin()
        wire.check()
        code, err = wire.leave()
        assert code == 0
        assert "a stray print" in err
        assert "another" in err


def test_a_socket_is_private_and_removed_at_the_end(folder: Path) -> None:
    path = folder / "sockets" / "lsp.sock"
    with serving("--socket", str(path)) as server:
        assert str(path) in server.line()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with connected(str(path)) as wire:
            wire.begin()
            server.process.terminate()
            assert wire.receive() is None
        assert ended(server) == 0
        assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(folder: Path) -> None:
    path = folder / "lsp.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving("--socket", str(path)) as server:
        server.line()
        with serving("--socket", str(path)) as second:
            code, err = second.end()
            assert (code, err.count("\n")) == (2, 1)
            assert "another server is using this socket" in err
        with connected(str(path)) as wire:
            wire.begin()


def test_wrong_sockets_and_ports_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "precious").write_text("text")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            ("--socket", str(folder / "precious")): "the path is not a socket",
            ("--socket", str(folder / "open/lsp.sock")): "accessible to other users",
            ("--socket", str(folder / ("x" * 200))): "shorter than",
            ("--port", str(taken.getsockname()[1])): "",
            ("--port", "70000"): "",
            ("--port", "0", "--socket", str(folder / "s")): "",
        }
        for arguments, words in cases.items():
            assert main(["lsp", *arguments]) == 2
            err = capsys.readouterr().err
            assert words in err
            assert err.count("\n") == 1 or not words
    assert (folder / "precious").read_text() == "text"


def test_a_slow_reader_does_not_stop_the_others(folder: Path) -> None:
    path = folder / "lsp.sock"
    with serving("--socket", str(path)) as server:
        server.line()
        with connected(str(path)) as slow, connected(str(path)) as other:
            slow.begin()
            other.begin()
            slow.send(*(request(f"{i:05000}", "textDocument/inlineCompletion", asking()) for i in range(2000)))
            other.check()
            for i in range(2000):
                assert slow.answer(f"{i:05000}")["result"] is None
        assert psutil.Process(server.process.pid).num_fds() < 30
    assert os.path.lexists(path)  # killed: nobody could clean up, and the next one does
