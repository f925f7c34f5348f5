"""Chat with the real engine and the embedded pair."""

import sys

import pytest

from tests.support.chats import Scene, ask

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals"),
]


def test_first_chat_with_the_real_engine(chats_without_engine: Scene) -> None:
    terminal = chats_without_engine.start("--threads", "1", "--max-tokens", "40")
    terminal.wait_for("embedded")
    ask(terminal, "Write a function that adds.", "first token")
    assert "def" in terminal.text
    assert len(chats_without_engine.engines()) == 1
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert len(chats_without_engine.engines()) == 1  # the daemon keeps running
