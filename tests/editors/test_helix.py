"""Helix in a terminal, and `localdflash lsp`: what its completion menu shows and inserts."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localdflash.lab.scripts.editors import fetch
from tests.editors.conftest import instant
from tests.support import daemons

pytestmark = pytest.mark.editors

SECONDS, PAUSE = 20.0, 0.5
COMPLETE = "\x18"  # C-x
LANGUAGES = """
[language-server.localdflash]
command = {command}
args = {arguments}

[[language]]
name = "python"
language-servers = ["localdflash"]
"""
BOX = """class Box:
    def update(self, *args, **kwargs):
        self.__dict__.update(*args, **kwargs)
        self.price = f'$1 ${self.price}'
        return self


print(Box)
"""
BODY = BOX.partition("kwargs):\n")[2].partition("\n\n")[0]


class Terminal:
    """A program in a terminal that is never drawn: what it writes is searched as it comes."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def keys(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, word: str, again: str = "") -> None:
        """Wait until this is written, pressing keys again for as long as it is not."""
        written, end = b"", time.monotonic() + SECONDS
        while word.encode() not in written:
            assert time.monotonic() < end, f"no {word!r} in {written!r}"
            if select.select([self._fd], [], [], PAUSE)[0]:
                written += os.read(self._fd, 65536)
            else:
                self.keys(again)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._fd)


@pytest.fixture(scope="module")
def helix() -> Path:
    found = fetch.installed("helix")
    if found is None:
        pytest.skip("no Helix here: make test-editors fetches it")
    return found


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with daemons.short_home(monkeypatch), instant(tmp_path, {"known.py": BOX}):
        yield


@contextmanager
def edited(helix: Path, folder: Path, text: str) -> Iterator[tuple[Terminal, Path]]:
    """Helix with a file of this text."""
    file, config = folder / "project" / "edited.py", folder / "config" / "helix"
    (folder / "project" / ".git").mkdir(parents=True)
    config.mkdir(parents=True)
    file.write_bytes(text.encode())
    program, *arguments = [sys.executable, "-P", "-c", daemons.PROGRAM, "lsp"]
    languages = LANGUAGES.format(command=json.dumps(program), arguments=json.dumps(arguments))
    (config / "languages.toml").write_text(languages, "utf-8")
    own = {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_CACHE_HOME": str(folder), "TERM": "xterm-256color"}
    terminal = Terminal([str(helix), file.name], file.parent, os.environ | own)
    try:
        terminal.until("NOR")
        yield terminal, file
    finally:
        terminal.close()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_several_lines_come_in_as_they_are(helix: Path, tmp_path: Path, end: str) -> None:
    hole = BOX.replace(BODY, "    ").replace("\n", end)
    with edited(helix, tmp_path, hole) as (terminal, file):
        terminal.keys("3GA")
        terminal.until("__dict__", again=COMPLETE)
        terminal.keys("\t")
        terminal.until("return")
        terminal.keys("\r\x1b")
        terminal.until("NOR")
        terminal.keys(":w\r")
        daemons.until(lambda: file.read_bytes() == BOX.replace("\n", end).encode(), SECONDS)
        terminal.keys("u:w\r")
        daemons.until(lambda: file.read_bytes() == hole.encode(), SECONDS)
