"""A picture, neovim.svg: Neovim with the plugin and `localdflash lsp`, in which smollm2-135m-code completes.

`PYTHONPATH=. python -P lab/scripts/nvim_picture.py FILE.svg` types the head of a function into a file and saves the
screen as soon as a suggestion is shown. The suggestion is the model's, the status line the plugin's.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.support.home import home_with

PROGRAM = Path(sys.executable).with_name("localdflash")
PAIR = "smollm2-135m-code"
TYPED = "def cheapest(items: list[Item]) -> Item:"
BODY = "    return sum(item.price for item in items)\n"
SECONDS = 60  # limit of the wait for a suggestion, which includes loading the model


def picture(file: Path) -> str:
    """Save the picture; return the suggestion."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PROGRAM), "lsp", "--pair", PAIR]
        with nvim_scene.scene(fetch.fetch_program("neovim"), Path(folder), setup=nvim_scene.LOOK, cmd=command) as scene:
            editor = scene.editor
            scene.open("prices.py", f"{nvim_scene.PRICES}{BODY}\n\n")
            editor.command("set filetype=python | syntax on")
            editor.keys("Go")
            editor.type(TYPED)
            editor.until(lambda: len(editor.ghost().splitlines()) > 2, "a suggestion", SECONDS)
            editor.until(lambda: any(f"{PAIR} τ" in row and "0/1" in row for row in editor.screen.rows()), "its count")
            editor.screen.save(file, editor.lua("return vim.o.lines") - 1)
            return editor.ghost()


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description="Take a picture of a suggestion in Neovim.")
    parser.add_argument("file", type=Path, help="the picture, for example docs/pictures/neovim.svg")
    file = parser.parse_args().file
    with home_with(PAIR):
        sys.stdout.write(picture(file) + "\n")


if __name__ == "__main__":
    main()
