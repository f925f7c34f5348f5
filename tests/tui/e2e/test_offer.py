"""The offer to pull the chat's pair, on a real terminal and in pipes."""

import sys
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY
from tests.support.chats import Scene
from tests.support.wheels import pip_settings

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
QUESTION = "Fetch it?"


def online(folder: Path) -> dict[str, str]:
    """Where pip finds nothing, at once."""
    return pip_settings(folder) | {"HF_HUB_OFFLINE": "0"}


def test_no_and_then_never_again(chats: Scene) -> None:
    terminal = chats.start(ready=False, env=online(chats.folder))
    terminal.wait_for(QUESTION)
    assert "93 MB" in terminal.text
    terminal.type("n\r")
    terminal.wait_for(READY)
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert QUESTION not in chats.start(env=online(chats.folder)).wait_for(READY)


@pytest.mark.parametrize(("arguments", "end"), [(("--plain",), "leaves"), (("--pair", "embedded"), READY)])
def test_others_are_not_asked(arguments: tuple[str, ...], end: str, chats: Scene) -> None:
    terminal = chats.start(*arguments, ready=False, env=online(chats.folder))
    assert QUESTION not in terminal.wait_for(end)


def test_a_prompt_is_answered_without_a_question(chats: Scene) -> None:
    chats.answers(Answer.of("Hello."))
    terminal = chats.start("-p", "hello", ready=False, env=online(chats.folder))
    assert QUESTION not in terminal.wait_for("Hello.")
