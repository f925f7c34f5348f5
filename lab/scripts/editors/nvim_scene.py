"""Neovim with the plug-in and a scripted server, for tests of the plug-in."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localdflash.lab.scripts.editors.nvim import NvimEditor, editor

SERVER = Path(__file__).parent / "scripted.py"
ADD = "def add(first, second):\n    total = first + second\n    return total\n\n\nprint(add(1, 2))\n"
BODY = "    total = first + second\n    return total"
PRICES = '''"""Prices with discounts."""

from dataclasses import dataclass


@dataclass
class Item:
    """What is sold. Prices are in cents."""

    name: str
    price: int


def total(items: list[Item]) -> int:
    """The price of all items together."""
'''
SETUP = "require('localdflash').setup({settings})"
LOOK = (  # setup of pictures, with colours and a status line
    SETUP
    + """
vim.cmd.colorscheme('habamax')
vim.api.nvim_set_hl(0, 'LocaldflashSuggestion', { fg = '#6c7a96', italic = true })
vim.o.laststatus, vim.o.showmode, vim.o.ruler = 2, false, false
vim.o.statusline = " %t %m%=%{%v:lua.require'localdflash'.status()%} "
"""
)


@dataclass
class EditorScene:
    """The editor, the folder with its files, and the server's log."""

    editor: NvimEditor
    folder: Path
    log: Path

    def open(self, name: str, text: str = "") -> Path:
        """Edit a file of the folder with this text; return when a server has opened it."""
        path = self.folder / name
        if not path.exists():
            path.write_bytes(text.encode())
        self.editor.command(f"edit {path}")
        self.editor.until_attached()
        return path

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the client's messages of these kinds, in order."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] in names]

    def until_event(self, name: str, **about: Any) -> dict[str, Any]:
        """Wait for the first message of a kind that has these values."""

        def matching() -> list[dict[str, Any]]:
            return [event for event in self.events(name) if about.items() <= event.items()]

        self.editor.until(matching, f"{name} {about}")
        return matching()[0]

    def tell(self, method: str, **params: Any) -> None:
        """Send a request to the server and wait for its answer."""
        code = "local c = vim.lsp.get_clients({bufnr=0})[1]; local done, p = false, {...}\n"
        code += "local answered = function() done = true end\n"
        code += "if vim.fn.has('nvim-0.11') == 1 then c:request(p[1], p[2], answered)\n"
        code += "else c.request(p[1], p[2], answered) end\n"
        code += "return vim.wait(5000, function() return done end, 1)"
        assert self.editor.lua(code, method, params or {"none": True})

    @contextmanager
    def answers_held(self) -> Iterator[None]:
        """Delay answers inside the context; all have arrived at its end."""
        self.tell("test/hold")
        yield
        self.tell("test/release")
        self.tell("test/hold")  # the answer to this comes after the held answers
        self.tell("test/release")


@contextmanager
def scene(nvim: Path, folder: Path, *texts: str, setup: str = SETUP, **settings: Any) -> Iterator[EditorScene]:
    """Start a scene; `texts` are the server's documents, `settings` are passed to setup()."""
    known, log, project = folder / "texts.json", folder / "log", folder / "project"
    known.write_text(json.dumps(texts), "utf-8")
    (project / ".git").mkdir(parents=True)
    server = {"cmd": [sys.executable, "-P", str(SERVER), str(known), str(log)]}
    given = f"vim.json.decode([==[{json.dumps(server | settings)}]==])"
    with editor(nvim, setup.replace("{settings}", given)) as started:
        yield EditorScene(started, project, log)
