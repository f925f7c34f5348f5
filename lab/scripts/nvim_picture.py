"""docs/pictures/neovim.svg: Neovim with the plugin and `localdflash lsp`, in which smollm2-135m-code completes.

`PYTHONPATH=. python -P lab/scripts/nvim_picture.py` types the head of a function into a file and saves the screen as
soon as a suggestion stands there: it is what the model wrote, and the status line is the plugin's own.
"""

import sys
import tempfile
from pathlib import Path

from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.support.bench_daemon import ROOT
from localdflash.lab.scripts.support.home import home_with

PROGRAM = Path(sys.executable).with_name("localdflash")
PAIR = "smollm2-135m-code"
TYPED = "def cheapest(items: list[Item]) -> Item:"
BODY = "    return sum(item.price for item in items)\n"
SECONDS = 60  # until the model is loaded


def picture(file: Path) -> str:
    """Save it; what was suggested."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PROGRAM), "lsp", "--pair", PAIR]
        with nvim_scene.scene(fetch.neovim(), Path(folder), setup=nvim_scene.LOOK, cmd=command) as scene:
            editor = scene.editor
            scene.open("prices.py", f"{nvim_scene.PRICES}{BODY}\n\n")
            editor.command("set filetype=python | syntax on")
            editor.keys("Go")
            editor.type(TYPED)
            editor.until(lambda: len(editor.ghost().splitlines()) > 2, "a suggestion", SECONDS)
            editor.until(lambda: any(f"{PAIR} τ" in row and "0/1" in row for row in editor.screen.rows()), "its count")
            editor.screen.save(file, editor.lua("return vim.o.lines") - 1)
            return editor.ghost()


if __name__ == "__main__":
    with home_with(PAIR):
        sys.stdout.write(picture(ROOT / "docs" / "pictures" / "neovim.svg") + "\n")
