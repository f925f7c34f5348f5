"""Whole chats in pseudo-terminals: asking, fast typing, terminal types, quitting."""

import re
import sys

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY
from tests.support.chats import Scene, ask

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
CODE = "Here it is.\n\n```python\ndef add(a, b):\n    return a + b\n```\n\nThat is all.\n"
ALTERNATE, CURSOR = 1049, 25
PASTE = 2004


def test_first_chat(chats: Scene) -> None:
    chats.answers(Answer.of(CODE, rate=400))
    terminal = chats.start()
    assert {ALTERNATE, PASTE} <= terminal.modes
    assert "scripted" in terminal.wait_for("scripted")  # the model
    screen = ask(terminal, "write add", "That is all.")
    assert "return a + b" in screen
    assert "```" not in screen
    assert chats.engine.asked[0]["messages"][-1] == {"role": "user", "content": "write add"}
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert terminal.modes == {7, CURSOR}


def test_keys_in_one_burst_keep_their_order(chats: Scene) -> None:
    terminal = chats.start()
    terminal.type("first message\rsecond")
    terminal.wait_for(lambda _: len(chats.engine.asked) == 1)
    terminal.wait_for("second")
    assert chats.engine.asked[0]["messages"][-1]["content"] == "first message"
    terminal.press(*["backspace"] * 6)
    terminal.type("third\r")
    terminal.wait_for(lambda _: len(chats.engine.asked) == 2)
    assert chats.engine.asked[1]["messages"][-1]["content"] == "third"


@pytest.mark.parametrize(
    ("term", "colorterm", "colours"),
    [
        ("tmux-256color", "", b"8;5;"),
        ("xterm", "truecolor", b"8;2;"),
        ("linux", "", b""),
    ],
)
def test_terminal_colours(chats: Scene, term: str, colorterm: str, colours: bytes) -> None:
    terminal = chats.start(env={"TERM": term, "COLORTERM": colorterm})
    terminal.wait_for(lambda _: colours in terminal.raw)
    found = {code for code in (b"8;5;", b"8;2;") if code in terminal.raw}
    assert found == ({colours} if colours else set())


def test_dumb_terminal_gets_the_line_chat(chats: Scene) -> None:
    chats.answers(Answer.of("Plain text."))
    terminal = chats.start(env={"TERM": "dumb"}, ready=False)
    terminal.wait_for("\n>")
    terminal.type("hello\n")
    assert "Plain text." in terminal.wait_for(re.compile(r"\]\n>"))
    assert b"\x1b" not in terminal.raw
    terminal.press("ctrl+d")
    assert terminal.wait() == 0


def test_quitting_prints_the_resume_command(chats: Scene) -> None:
    chats.answers(Answer.of("Well."))
    terminal = chats.start()
    ask(terminal, "why", "Well.")
    terminal.press("ctrl+c", "ctrl+c")
    assert terminal.wait() == 0
    assert b"localdflash chat --resume 1 continues this chat" in terminal.raw


def test_prompt_is_usable_before_the_engine(chats: Scene) -> None:
    chats.engine.take({"loading": 2.0})
    chats.answers(Answer.of("At last."))
    terminal = chats.start()
    terminal.wait_for(lambda text: "oading" in text or "tarting" in text)
    assert READY in terminal.text
    ask(terminal, "typed early", "At last.")


@pytest.mark.transport
def test_first_chat_with_the_real_engine(chats_without_engine: Scene) -> None:
    terminal = chats_without_engine.start("--threads", "1", "--max-tokens", "40")
    terminal.wait_for("embedded")
    ask(terminal, "Write a function that adds.", "first token")
    assert "def" in terminal.text
    assert len(chats_without_engine.engines()) == 1
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert len(chats_without_engine.engines()) == 1  # the daemon keeps running
