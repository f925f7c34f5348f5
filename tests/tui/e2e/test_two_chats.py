"""Two terminals, two models, one engine: who answers is on the screen, and who would lose its model is asked about."""

import sys
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.terminal import Terminal
from localdflash.tui.screens.dialog import CALM
from tests.support.chats import Scene, ask
from tests.support.daemons import ONE_PAIR, PROGRAM, SLOW

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
NARROW = f"from localdflash.server import spawn; spawn.PROGRAM = {SLOW + ONE_PAIR + PROGRAM!r};"
LONG = ("--temperature", "3", "--seed", "1", "--max-tokens", "600")
BUSY = "embedded is answering in another chat"


@pytest.fixture
def tiny(tiny_pair: Path, lonely: Scene) -> Path:
    """Another model, whose name fits on a line."""
    other = lonely.home / "other.gguf"
    other.write_bytes((tiny_pair / "target.gguf").read_bytes())
    return other


def switch(terminal: Terminal, to: Path) -> None:
    """Ask for another model while the first chat is answered."""
    terminal.type(f"/model {to}")
    terminal.wait_for(to.name)
    terminal.press("enter")
    terminal.wait_for("other does not fit into memory beside it")
    assert BUSY in terminal.text
    terminal.watch(CALM + 0.2)  # a question takes no key earlier


def test_waiting_for_the_answer_in_another_chat(lonely: Scene, tiny: Path) -> None:
    one = lonely.start("--threads", "1", *LONG, program=NARROW)
    one.wait_for("embedded")
    another = lonely.start("--threads", "1", "--max-tokens", "8", program=NARROW)
    another.wait_for("embedded")
    ask(one, "Write a function.", "#2")
    switch(another, tiny)
    another.press("w")
    another.wait_for("waiting for another chat")
    another.press("escape")
    another.wait_for("is not loaded")
    switch(another, tiny)
    another.press("w")
    another.wait_for("waiting for another chat")
    one.press("escape")
    one.wait_for("stopped")
    another.wait_for("other.gguf is loaded")
    ask(another, "Write a function.", "other #2")
    another.wait_for("8 tokens")
    ask(one, "Another one.", "loaded again")
    one.wait_for("embedded #4")
