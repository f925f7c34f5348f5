"""Offer to pull the chat pair, on a pseudo-terminal."""

import sys
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY
from tests.support.chats import Scene
from tests.support.wheels import pip_settings

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
QUESTION = "Download it?"


def online(folder: Path) -> dict[str, str]:
    """Return an environment in which pip finds no package."""
    return pip_settings(folder) | {"HF_HUB_OFFLINE": "0"}


def test_declined_offer_is_not_repeated(chats: Scene) -> None:
    terminal = chats.start(ready=False, env=online(chats.folder))
    terminal.wait_for(QUESTION)
    assert "93 MB" in terminal.text
    terminal.type("n\r")
    terminal.wait_for(READY)
    terminal.press("ctrl+q")
    assert terminal.wait() == 0
    assert QUESTION not in chats.start(env=online(chats.folder)).wait_for(READY)


@pytest.mark.parametrize(("arguments", "end"), [(("--plain",), "leaves"), (("--pair", "embedded"), READY)])
def test_offer_is_skipped_for_plain_chat_and_explicit_pair(arguments: tuple[str, ...], end: str, chats: Scene) -> None:
    terminal = chats.start(*arguments, ready=False, env=online(chats.folder))
    assert QUESTION not in terminal.wait_for(end)


def test_prompt_option_skips_the_offer(chats: Scene) -> None:
    chats.answers(Answer.of("Hello."))
    terminal = chats.start("-p", "hello", ready=False, env=online(chats.folder))
    assert QUESTION not in terminal.wait_for("Hello.")
