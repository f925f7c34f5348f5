"""Stored chats across processes: resumed after kills and signals, and on a full disk."""

import resource
import signal
import sys

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import Terminal
from tests.support.chats import Scene, ask
from tests.support.daemons import until

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals, prlimit")]


def quit_chat(terminal: Terminal) -> None:
    terminal.press("ctrl+q")
    assert terminal.wait() == 0, terminal.failure("the chat did not quit with exit code 0")


def test_kill_during_an_answer_keeps_its_text(chats: Scene) -> None:
    chats.answers(Answer.of("word " * 4000, rate=10))
    terminal = chats.start()
    ask(terminal, "tell me", "word word")
    terminal.watch(3)  # the answer is stored every two seconds
    terminal.kill()
    terminal.wait()
    chats.answers(Answer.of("Fine."))
    again = chats.start("--continue")
    again.wait_for("tell me")
    again.wait_for("word word")
    ask(again, "more", "Fine.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_restores_the_terminal(number: int, chats: Scene) -> None:
    chats.answers(Answer.of("word " * 4000, rate=10))
    terminal = chats.start()
    ask(terminal, "tell me", "word word")
    terminal.kill(number)
    if number == signal.SIGINT:  # stops the answer, as Ctrl-C does
        terminal.wait_for(lambda _: chats.engine.left == 1 or not terminal.child.isalive())
    if number != signal.SIGINT or not terminal.child.isalive():
        terminal.wait()
        assert terminal.modes & {1049, 1000, 1003, 1006, 2004} == set(), terminal.failure("terminal modes are still on")
        assert 25 in terminal.modes
    assert b"Traceback" not in terminal.raw
    again = chats.start("--continue")
    again.wait_for("tell me")


def test_full_disk_loses_no_message(chats: Scene) -> None:
    chats.answers(*(Answer.of(f"Answer {n}.") for n in range(1, 6)))
    terminal = chats.start()
    ask(terminal, "one", "Answer 1.")
    terminal.settle()
    _, hard = resource.prlimit(terminal.child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(terminal.child.pid, resource.RLIMIT_FSIZE, (0, hard))
    ask(terminal, "two", "Answer 2.")
    terminal.wait_for("not saved")
    ask(terminal, "three", "Answer 3.")
    terminal.settle()
    assert terminal.text.count("not saved") == 1
    assert all(f"Answer {n}." in terminal.text for n in (1, 2, 3))
    resource.prlimit(terminal.child.pid, resource.RLIMIT_FSIZE, (hard, hard))
    ask(terminal, "four", "Answer 4.")
    terminal.wait_for("saving works again")
    quit_chat(terminal)
    again = chats.start("--continue")
    again.wait_for(lambda text: all(f"Answer {n}." in text for n in (1, 2, 3, 4)))


def test_unsaved_messages_are_reported_after_quitting(chats: Scene) -> None:
    chats.answers(Answer.of("Answer 1."), Answer.of("Answer 2."))
    terminal = chats.start()
    ask(terminal, "one", "Answer 1.")
    terminal.settle()
    resource.prlimit(terminal.child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ask(terminal, "two", "Answer 2.")
    terminal.wait_for("not saved")
    quit_chat(terminal)
    assert b"not all messages were saved" in terminal.raw


def test_early_keys_go_to_the_resumed_chat(chats: Scene) -> None:
    chats.answers(Answer.of("The first answer."), Answer.of("The second answer."))
    terminal = chats.start()
    ask(terminal, "one question", "The first answer.")
    quit_chat(terminal)
    terminal = chats.start("--continue", ready=False)
    until(lambda: terminal.read(0.01) and 1049 in terminal.modes)
    terminal.type("typed early\r")
    terminal.wait_for("The second answer.")
    asked = [one["content"] for one in chats.engine.asked[-1]["messages"]]
    assert asked == ["one question", "The first answer.", "typed early"]
