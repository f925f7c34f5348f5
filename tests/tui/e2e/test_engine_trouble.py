"""The engine goes away, refuses, is late or talks nonsense: nothing that was said is lost, and one line says so."""

import sys
from collections.abc import Callable

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import script
from localdflash.lab.scripts.support.terminal import READY
from localdflash.tui.screens.dialog import CALM
from tests.support.chats import SCRIPTED, Scene, ask
from tests.support.daemons import until

pytestmark = [pytest.mark.transport, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
SLOW = Answer.of("word " * 2000, rate=100)
# An engine that can be started once: after that, it says why not.
ONCE = '''
import os
again = os.environ["LOCALDFLASH_HOME"] + "/again"
spawn.PROGRAM = f"""
import os, sys
if os.path.exists({again!r}): sys.exit("no room")
open({again!r}, "w").close()
{spawn.PROGRAM}
"""
'''


def test_an_engine_that_is_killed_is_started_again(lonely: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT", script(Answer.of("word " * 60 + "The end.", rate=60)))
    terminal = lonely.start(program=SCRIPTED)
    terminal.wait_for("scripted")
    ask(terminal, "tell me", "word word")
    (engine,) = lonely.engines()
    engine.kill()
    terminal.wait_for("The end.", 30)
    (another,) = lonely.engines()
    assert another.pid != engine.pid
    assert "tell me" in terminal.text


def test_an_engine_that_stays_away_leaves_the_answer_so_far(lonely: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT", script(SLOW))
    terminal = lonely.start(program=SCRIPTED + ONCE)
    terminal.wait_for("scripted")
    ask(terminal, "tell me", "word word")
    (engine,) = lonely.engines()
    engine.kill()
    terminal.wait_for("Ctrl+R")
    assert "word word" in terminal.text
    assert "no room" in terminal.text
    monkeypatch.setenv("SCRIPT", script(Answer.of("Here again.")))
    (lonely.home / "again").unlink()
    terminal.press("ctrl+r")
    terminal.wait_for("word word word")
    assert terminal.child.isalive()


def test_a_connection_that_breaks_every_time(chats: Scene) -> None:
    chats.answers(Answer.pieces("some words ", "and more ", end="cut", wait=0.05))
    terminal = chats.start()
    ask(terminal, "tell me", "Ctrl+R")
    assert "and more" in terminal.text
    chats.answers(Answer.of("All of it."))
    terminal.press("ctrl+r")
    terminal.wait_for("All of it.")


@pytest.mark.parametrize(
    "answer",
    [
        Answer.pieces("some words ", end="error", message="the device is lost"),
        Answer.pieces("some words ", end="garbage"),
        Answer(status=503, message="too many requests wait", code="queue_full"),
        Answer(status=500, message="an error inside"),
        Answer(status=404, message="no such model", code="model_not_found"),
    ],
    ids=["event", "garbage", "full", "inside", "no model"],
)
def test_an_error_is_told_and_the_question_can_be_asked_again(answer: Answer, chats: Scene) -> None:
    chats.answers(answer)
    terminal = chats.start()
    text = ask(terminal, "tell me", "Ctrl+R")
    assert "tell me" in text
    assert not answer.message or answer.message in text
    assert not answer.steps or "some words" in text
    chats.answers(Answer.of("All of it."))
    terminal.press("ctrl+r")
    terminal.wait_for("All of it.")
    assert [one["content"] for one in chats.engine.asked[-1]["messages"]] == ["tell me"]


def test_a_full_context_asks_what_to_leave_out(chats: Scene) -> None:
    chats.engine.about = {"context": 200}
    chats.answers(*(Answer.of(f"answer {n} " + "x " * 40 + "done.") for n in range(9)))
    terminal = chats.start(rows=50)
    for n in range(1, 9):
        terminal.type(f"question {n}")
        terminal.wait_for(f"question {n}")
        terminal.press("enter")
        terminal.wait_for(_either(f"answer {n - 1} x", "no longer be sent"))
        terminal.settle(0.15)
        if "no longer be sent" in terminal.text:
            break
    assert "200" in terminal.text
    before = len(chats.engine.asked)
    terminal.settle(CALM + 0.1)  # the question takes no key earlier
    terminal.press("y") if "y " in terminal.text.lower() else terminal.press("enter")
    terminal.wait_for("no longer sent")
    terminal.wait_for(READY)
    told = chats.engine.asked[-1]["messages"]
    assert len(chats.engine.asked) > before
    assert told[-1]["content"] == f"question {n}"
    assert told[0]["content"] != "question 1"


def _either(*texts: str) -> Callable[[str], bool]:
    return lambda screen: any(text in screen for text in texts)


def test_an_engine_that_hangs_can_be_stopped(chats: Scene) -> None:
    chats.answers(Answer.pieces("some words ", end="hang"))
    terminal = chats.start()
    ask(terminal, "tell me", "some words")
    terminal.press("escape")
    terminal.wait_for("topped")
    chats.answers(Answer.of("Fine."))
    ask(terminal, "again", "Fine.")


def test_an_engine_that_says_nothing_at_all(chats: Scene) -> None:
    chats.answers(Answer(end="stop"))
    terminal = chats.start()
    ask(terminal, "tell me", lambda _: len(chats.engine.asked) == 1)
    until(lambda: chats.engine.live == 0)
    chats.answers(Answer.of("Fine."))
    ask(terminal, "again", "Fine.")


def test_no_model_at_this_path(lonely: Scene) -> None:
    terminal = lonely.start("--pair", "/nowhere/model.gguf")
    terminal.wait_for("/nowhere/model.gguf")
    terminal.type("still here")
    terminal.wait_for("still here")
    terminal.press("enter")
    terminal.settle()
    assert "still here" in terminal.text
    assert b"Traceback" not in terminal.raw
    terminal.press("ctrl+q")
    assert terminal.wait() == 0


def test_a_pair_that_does_not_exist(lonely: Scene) -> None:
    lonely.start("--pair", "embeded").wait_for("did you mean 'embedded'")
