"""The chat with the engine that ships: nothing is scripted here."""

import sys

import pytest

from tests.support.chats import Scene, ask

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals"),
]


def test_a_fresh_home(lonely: Scene) -> None:
    terminal = lonely.start("--threads", "1", "--max-tokens", "40")
    terminal.wait_for("embedded")
    ask(terminal, "Write a function that adds.", "first token")
    assert "def" in terminal.text
    assert len(lonely.engines()) == 1
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert len(lonely.engines()) == 1  # it stays for the next one
