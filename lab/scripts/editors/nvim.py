"""Neovim controlled over its socket: keys are sent, screen and buffer are read."""

import gc
import json
import os
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvim

from localdflash.lab.scripts.editors.screen import Screen

PLUGIN = Path(__file__).parents[3] / "editors" / "nvim"
WIDTH, HEIGHT = 90, 24
SECONDS = 10.0
INIT = """
vim.opt.runtimepath:prepend({plugin})
vim.o.swapfile, vim.o.shada, vim.o.autoread = false, '', false
vim.o.number, vim.o.termguicolors = true, true
vim.g.loaded_python3_provider = 0
messages = {{}}
vim.notify = function(text) table.insert(messages, text) end
"""


class NvimEditor:
    """Neovim with an attached screen."""

    def __init__(self, address: str, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._nvim, self._drawn = _connected(address), _connected(address)
        self.screen = Screen(WIDTH, HEIGHT)
        self._drawn.ui_attach(WIDTH, HEIGHT, rgb=True, ext_linegrid=True)
        self._painter = threading.Thread(target=self._paint, daemon=True)
        self._painter.start()

    def _paint(self) -> None:
        with suppress(OSError, EOFError):  # the editor has ended
            while (message := self._drawn.next_message()) is not None:
                if message[1] == "redraw":
                    self.screen.draw(message[2])

    def close(self) -> None:
        """Kill the editor."""
        self.process.kill()
        self.process.wait(10)
        self._painter.join(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._nvim.close()
            self._drawn.close()
            del self._nvim, self._drawn
            gc.collect()  # pynvim leaves its sockets to the garbage collector

    def keys(self, keys: str) -> None:
        """Press keys, special keys as `<Tab>`; return when the editor has handled them."""
        self._nvim.input(keys)
        self._nvim.eval("1")

    def type(self, text: str) -> None:
        """Type a text, key by key."""
        for character in text:
            self.keys({"<": "<lt>", "\n": "<CR>"}.get(character, character))

    def lua(self, code: str, *arguments: Any) -> Any:
        """Run Lua in the editor."""
        return self._nvim.exec_lua(code, *arguments)

    def command(self, command: str) -> None:
        """Run an Ex command."""
        self._nvim.command(command)

    def text(self) -> str:
        """Return the text of the current buffer."""
        return "\n".join(self._nvim.current.buffer[:])

    def ghost(self) -> str:
        """Return the shown suggestion; "" without one."""
        return str(self.lua(GHOST))

    def messages(self) -> list[str]:
        """Return the messages shown to the user."""
        return list(self.lua("return messages"))

    def until(self, condition: Callable[[], object], what: str = "it", seconds: float = SECONDS) -> None:
        """Wait for a condition; fail if it does not come true."""
        end = time.monotonic() + seconds
        while not self._nvim.api.get_mode()["blocking"] and not condition():
            assert time.monotonic() < end, f"{what} did not happen; the screen:\n" + "\n".join(self.screen.rows())
            time.sleep(0.005)
        blocked = self._nvim.api.get_mode()["blocking"]  # an error message waits for a key
        assert not blocked, "\n".join(self.screen.rows())

    def until_ghost(self, text: str) -> None:
        """Wait until exactly this text is suggested and drawn."""
        self.until(lambda: self.ghost() == text, f"the ghost text {text!r}")
        last = text.rpartition("\n")[2] or text.partition("\n")[0]
        self.until(lambda: any(last in row for row in self.screen.rows()), f"{last!r} on the screen")

    def until_attached(self) -> None:
        """Wait until a server answers for the current buffer."""
        ready = "for _, c in ipairs(vim.lsp.get_clients({bufnr=0})) do if c.initialized then return true end end"
        self.until(lambda: self.lua(ready), "a server of this buffer")


GHOST = """
local names = vim.api.nvim_get_namespaces()
local namespace = names['localdflash'] or names['nvim.lsp.inline_completion']
if not namespace then return '' end
local lines = {}
for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, namespace, 0, -1, { details = true })) do
  local first = mark[4].virt_text or {}
  lines[#lines + 1] = first[1] and first[1][1] or ''
  for _, below in ipairs(mark[4].virt_lines or {}) do lines[#lines + 1] = below[1][1] end
end
return table.concat(lines, '\\n')
"""


def _connected(address: str) -> pynvim.Nvim:
    end = time.monotonic() + SECONDS
    while True:
        try:
            return pynvim.attach("socket", path=address)
        except OSError:  # it does not listen yet
            assert time.monotonic() < end, "Neovim did not listen"
            time.sleep(0.005)


@contextmanager
def editor(nvim: Path, setup: str, environment: dict[str, str] | None = None) -> Iterator[NvimEditor]:
    """Start a Neovim with the plug-in and without the user's configuration; `setup` is Lua code for its init file."""
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder:
        init, address = Path(folder) / "init.lua", f"{folder}/s"
        init.write_text(INIT.format(plugin=json.dumps(str(PLUGIN))) + setup, "utf-8")
        own = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"), folder)
        command = [str(nvim), "--headless", "--listen", address, "-u", str(init)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | own | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            started = NvimEditor(address, process)
            try:
                yield started
            finally:
                started.close()
        finally:
            process.kill()
            process.wait(10)
