"""Pictures of the plugin at work with a scripted server, kept as artifacts of the run."""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from localdflash.lab.scripts.editors.nvim_scene import LOOK, EditorScene
from tests.editors.conftest import Begin

pytestmark = pytest.mark.editors
HEAD = '''"""Prices with discounts."""

from dataclasses import dataclass


@dataclass
class Item:
    """What is sold. Prices are in cents."""

    name: str
    price: int


def total(items: list[Item], discount: float = 0.0) -> int:
    """The price of all items together, after a discount in percent."""
'''
BODY = """    full = sum(item.price for item in items)
    if not 0.0 <= discount <= 100.0:
        raise ValueError(f"no discount: {discount}")
    return round(full * (1 - discount / 100))
"""


@pytest.fixture
def pictures(root: Path) -> Path:
    return Path(os.environ.get("LOCALDFLASH_ARTIFACTS") or root / "build" / "editors")


def test_pictures(scene: Begin, pictures: Path) -> None:
    with scene(HEAD + BODY, setup=LOOK) as begun:
        begun.open("prices.py", HEAD + "\n")
        begun.editor.command("set filetype=python | syntax on")
        begun.tell("test/tell", model="embedded", tau=None, tokensPerSecond=None, shown=41, accepted=17)
        begun.editor.keys("Gi")
        begun.editor.until_ghost(BODY.rstrip("\n"))
        begun.editor.type("    fu")
        begun.editor.until_ghost(BODY.rstrip("\n")[6:])
        saved(begun, pictures / "neovim.svg")
        begun.editor.keys("<C-End>")
        begun.editor.until(lambda: begun.editor.text().endswith("items)"))
        saved(begun, pictures / "neovim-line-accepted.svg")
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == (HEAD + BODY).rstrip("\n"))
        saved(begun, pictures / "neovim-accepted.svg")


def saved(scene: EditorScene, path: Path) -> None:
    """Keep what the screen shows, and see that it is a picture."""
    scene.editor.until(lambda: any("17/41" in row for row in scene.editor.screen.rows()))
    scene.editor.screen.save(path, scene.editor.lua("return vim.o.lines") - 1)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
