"""Downloads in the model picker, by the real command line from a hub on loopback."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import READY, Terminal
from tests.support.chats import Scene
from tests.support.fake_hub import FakeHub, File, environment
from tests.support.wheels import pip_settings

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
NAME, CTRL_L = "hf:o/t/target.gguf", "\x0c"


@pytest.fixture
def hub(tiny_pair: Path) -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.files["o/t/target.gguf"] = File((tiny_pair / "target.gguf").read_bytes())
        yield running


def open_picker(chats: Scene, env: dict[str, str]) -> Terminal:
    """Start a chat, type a message, and open the picker with the model's name."""
    terminal = chats.start("--pair", "embedded", env=env | {"HF_HUB_OFFLINE": "0"})
    terminal.type("a thought")
    terminal.wait_for("a thought")
    terminal.type(CTRL_L)
    terminal.wait_for("Part of a name")
    terminal.type(NAME)
    terminal.wait_for(NAME)
    return terminal


def test_hub_model_is_downloaded_and_loaded(chats: Scene, hub: FakeHub) -> None:
    terminal = open_picker(chats, environment(hub, chats.home))
    terminal.wait_for("not downloaded")
    terminal.press("enter")
    terminal.wait_for("is loaded")
    assert (chats.home / "cache/models/o/t/target.gguf").is_file()
    assert "a thought" in terminal.text


def test_stopped_download_is_resumed(chats: Scene, hub: FakeHub) -> None:
    terminal, resume = open_picker(chats, environment(hub, chats.home)), threading.Event()
    terminal.wait_for("not downloaded")

    def hold(_: int) -> None:
        if None in hub.downloads("o/t/target.gguf"):  # the whole file, not parts of its header
            resume.wait(20)

    hub.sent = hold
    terminal.press("enter")
    folder = chats.home / "cache/models/o/t"
    terminal.wait_for(lambda _: any(folder.glob(".*.partial")))
    terminal.press("escape")
    terminal.wait_for("Enter resumes the download")
    resume.set()
    assert not (folder / "target.gguf").exists()
    terminal.press("enter")
    terminal.wait_for("is loaded")
    assert (folder / "target.gguf").read_bytes() == hub.files["o/t/target.gguf"].data


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
