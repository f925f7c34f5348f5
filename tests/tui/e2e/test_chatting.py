"""A chat as its user has it: asking, stopping, asking again, leaving; on every sort of terminal."""

import re
import subprocess
import sys

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY
from tests.support.chats import Scene, ask
from tests.support.daemons import PROGRAM

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
CODE = "Here it is.\n\n```python\ndef add(a, b):\n    return a + b\n```\n\nThat is all.\n"
SLOW = Answer.of("word " * 4000, rate=100)
ALTERNATE, CURSOR = 1049, 25
MOUSE, PASTE = {1000, 1003, 1006}, 2004


def test_a_first_chat(chats: Scene) -> None:
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
    [("xterm", "", b"8;5;"), ("tmux-256color", "", b"8;5;"), ("xterm", "truecolor", b"8;2;"), ("linux", "", b"")],
)
def test_the_colours_of_a_terminal(chats: Scene, term: str, colorterm: str, colours: bytes) -> None:
    terminal = chats.start(env={"TERM": term, "COLORTERM": colorterm})
    found = {code for code in (b"8;5;", b"8;2;") if code in terminal.raw}
    assert found == ({colours} if colours else set())


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_without_a_screen_gets_lines(env: dict[str, str], chats: Scene) -> None:
    chats.answers(Answer.of("Plain text."))
    terminal = chats.start(env=env, ready=False)
    terminal.wait_for("\n>")
    terminal.type("hello\n")
    assert "Plain text." in terminal.wait_for(re.compile(r"\]\n>"))
    assert b"\x1b" not in terminal.raw
    terminal.press("ctrl+d")
    assert terminal.wait() == 0


def test_a_file_for_an_output_gets_the_answer_alone(chats: Scene) -> None:
    chats.answers(Answer.of("Plain \x1b[31mtext."))
    command = [sys.executable, "-P", "-c", PROGRAM, "chat"]
    done = subprocess.run([*command, "-p", "hello"], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"Plain \x1b[31mtext.\n"
    piped = subprocess.run(command, input=b"hello", capture_output=True, timeout=60, check=True)
    assert piped.stdout == done.stdout


def test_a_message_is_written_in_an_editor(chats: Scene) -> None:
    """The terminal is the editor's for a while, and then the chat's again, with every key."""
    editor = chats.home / "editor"
    editor.write_text(
        '#!/bin/sh\nprintf \'in the editor\'; read key; printf \'%s and %s\' "$(cat "$1")" "$key" > "$1"\n'
    )
    editor.chmod(0o700)
    chats.answers(Answer.of("Done."))
    terminal = chats.start(env={"EDITOR": str(editor), "VISUAL": ""})
    terminal.type("one")
    terminal.wait_for("one")
    terminal.press("f7")
    terminal.wait_for("in the editor")
    assert ALTERNATE not in terminal.modes
    terminal.type("two\n")
    terminal.wait_for("one and two")
    assert {ALTERNATE, PASTE} <= terminal.modes
    ask(terminal, "!", "Done.")
    assert chats.engine.asked[0]["messages"][-1]["content"] == "one and two!"
    terminal.press("ctrl+q")
    assert terminal.wait() == 0


@pytest.mark.parametrize("keys", [("ctrl+d",), ("ctrl+c", "ctrl+c")])
def test_leaving_tells_how_to_go_on(chats: Scene, keys: tuple[str, ...]) -> None:
    chats.answers(Answer.of("Well."))
    terminal = chats.start()
    ask(terminal, "why", "Well.")
    for key in keys:
        terminal.press(key)
    assert terminal.wait() == 0
    assert b"localdflash chat --resume 1 goes on with this chat" in terminal.raw


def test_the_prompt_is_there_before_the_engine(chats: Scene) -> None:
    chats.engine.take({"loading": 2.0})
    chats.answers(Answer.of("At last."))
    terminal = chats.start()
    terminal.wait_for(lambda text: "oading" in text or "tarting" in text)
    assert READY in terminal.text
    ask(terminal, "typed early", "At last.")
