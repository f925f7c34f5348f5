"""A chat as its user has it: asking, stopping, asking again, leaving; on every sort of terminal."""

import random
import re
import subprocess
import sys

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY
from tests.support.chats import Scene, ask
from tests.support.daemons import PROGRAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
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


def test_the_next_message_has_the_ones_before(chats: Scene) -> None:
    chats.answers(Answer.of("The first."), Answer.of("The second."))
    terminal = chats.start()
    ask(terminal, "question one", "The first.")
    ask(terminal, "question two", "The second.")
    said = [(one["role"], one["content"]) for one in chats.engine.asked[1]["messages"]]
    assert said == [("user", "question one"), ("assistant", "The first."), ("user", "question two")]


def test_escape_stops_and_what_came_stays(chats: Scene) -> None:
    chats.answers(SLOW)
    terminal = chats.start()
    ask(terminal, "talk", "word word word")
    terminal.press("escape")
    terminal.wait_for(lambda _: chats.engine.left == 1)
    terminal.wait_for("topped")
    assert "word word word" in terminal.text
    chats.answers(Answer.of("Another one."))
    ask(terminal, "again", "Another one.")
    told = chats.engine.asked[-1]["messages"][1]
    assert told["role"] == "assistant"
    assert told["content"].startswith("word word")


def test_a_stopped_answer_goes_on(chats: Scene) -> None:
    chats.answers(SLOW)
    terminal = chats.start()
    ask(terminal, "talk", "word word word")
    terminal.press("escape")
    terminal.wait_for("stopped")
    terminal.wait_for(lambda _: chats.engine.left == 1)
    chats.answers(Answer.of("and the rest."))
    terminal.press("ctrl+g")
    terminal.wait_for("and the rest.")
    assert [one["role"] for one in chats.engine.asked[-1]["messages"]] == ["user", "assistant"]


def test_retry_keeps_the_answer_before(chats: Scene) -> None:
    chats.answers(Answer.of("One way."), Answer.of("Another way."))
    terminal = chats.start()
    ask(terminal, "how", "One way.")
    terminal.press("ctrl+r")
    assert "One way." not in terminal.wait_for("Another way.")
    terminal.press("alt+left")
    terminal.wait_for("One way.")
    terminal.press("alt+right")
    terminal.wait_for("Another way.")


def test_a_message_can_be_changed(chats: Scene) -> None:
    chats.answers(Answer.of("One way."), Answer.of("Another way."))
    terminal = chats.start()
    ask(terminal, "how", "One way.")
    terminal.press("up")
    terminal.wait_gone("One way.")
    ask(terminal, " else", "Another way.")
    assert [one["content"] for one in chats.engine.asked[-1]["messages"]] == ["how else"]


def test_what_is_sent_meanwhile_waits(chats: Scene) -> None:
    chats.answers(Answer.of("slow " * 40, rate=100), Answer.of("The second."))
    terminal = chats.start()
    ask(terminal, "one", "slow slow")
    ask(terminal, "two", "The second.")
    assert len(chats.engine.asked) == 2


def test_ctrl_c_stops_and_does_not_leave(chats: Scene) -> None:
    chats.answers(SLOW)
    terminal = chats.start()
    ask(terminal, "talk", "word word word")
    terminal.press("ctrl+c")
    terminal.wait_for("stopped")
    terminal.wait_for(lambda _: chats.engine.left == 1)
    terminal.press("ctrl+c")
    terminal.wait_for("leave")
    assert terminal.child.isalive()
    terminal.press("ctrl+q")
    assert terminal.wait() == 0


def test_a_command_that_does_not_exist(chats: Scene) -> None:
    terminal = chats.start()
    terminal.type("/exprot x")
    terminal.wait_for("/exprot x")
    terminal.press("enter")
    terminal.wait_for("did you mean /export")
    assert chats.engine.asked == []


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


def test_twenty_by_five(chats: Scene) -> None:
    chats.answers(Answer.of("An answer in a small place.\n" + CODE))
    terminal = chats.start(rows=5, cols=20, ready=False)
    terminal.wait_for("Ask")
    terminal.type("hi")
    terminal.wait_for("hi")
    terminal.press("enter")
    terminal.wait_for(lambda screen: "first" in screen and "Ask" in screen)  # the line under the answer
    terminal.press("pageup")
    terminal.wait_for("all.")
    for key in ("f1", "escape", "f2", "f2", "f3", "f3", "pageup", "pagedown"):
        terminal.press(key)
        terminal.settle(0.1)
    assert terminal.child.isalive(), terminal.told("it ended")
    terminal.press("ctrl+q")
    assert terminal.wait() == 0


def test_a_storm_of_sizes(chats: Scene) -> None:
    text = "\n".join(f"line {n} of a longer answer, with words to wrap" for n in range(200))
    chats.answers(Answer.of(f"```\n{text}\n```\nDone.", rate=1500))
    terminal, draw = chats.start(), random.Random(1)
    terminal.type("go")
    terminal.wait_for("go")
    terminal.press("enter")
    for _ in range(200):
        terminal.resize(draw.randint(3, 40), draw.randint(5, 120))
        terminal.read(0.01)
    terminal.resize(30, 100)
    terminal.wait_for("Done.")
    terminal.settle()
    assert "line 199 of a longer answer" in terminal.text


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


def test_an_answer_to_a_script_on_a_terminal_is_harmless(chats: Scene) -> None:
    chats.answers(Answer.of("Plain \x1b[31mtext \u202e\x9b2J."))
    terminal = chats.start("-p", "hello", ready=False)
    assert terminal.wait() == 0
    assert terminal.raw.decode() == "Plain ␛[31mtext ⟦U+202E⟧⟦U+009B⟧2J.\r\n[scripted]\r\n"


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


def test_no_log_keeps_nothing(chats: Scene) -> None:
    chats.answers(Answer.of("An answer nobody keeps."))
    terminal = chats.start("--no-log")
    ask(terminal, "a secret question", "nobody keeps")
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    kept = b"".join(path.read_bytes() for path in chats.home.rglob("*") if path.is_file())
    assert b"secret question" not in kept
    assert b"--resume" not in terminal.raw
    assert b"nobody keeps" not in kept


def test_the_prompt_is_there_before_the_engine(chats: Scene) -> None:
    chats.engine.take({"loading": 2.0})
    chats.answers(Answer.of("At last."))
    terminal = chats.start()
    terminal.wait_for(lambda text: "oading" in text or "tarting" in text)
    assert READY in terminal.text
    ask(terminal, "typed early", "At last.")
