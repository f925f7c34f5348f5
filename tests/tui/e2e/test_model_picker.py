"""Downloads from inside the picker: the command line fetches from a hub on loopback, in a process of its own."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.terminal import Terminal
from tests.support.chats import Scene
from tests.support.fake_hub import FakeHub, File, environment

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
NAME, CTRL_L = "hf:o/t/target.gguf", "\x0c"


@pytest.fixture
def hub(tiny_pair: Path) -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.files["o/t/target.gguf"] = File((tiny_pair / "target.gguf").read_bytes())
        yield running


def picking(chats: Scene, env: dict[str, str]) -> Terminal:
    """A chat whose picker has this name, while something was being written."""
    terminal = chats.start("--pair", "embedded", env=env | {"HF_HUB_OFFLINE": "0"})
    terminal.type("a thought")
    terminal.wait_for("a thought")
    terminal.type(CTRL_L)
    terminal.wait_for("Part of a name")
    terminal.type(NAME)
    terminal.wait_for(NAME)
    return terminal


def test_a_name_on_the_hub_is_shown_downloaded_and_loaded(chats: Scene, hub: FakeHub) -> None:
    terminal = picking(chats, environment(hub, chats.home))
    terminal.wait_for("not downloaded")
    terminal.press("enter")
    terminal.wait_for("is loaded")
    assert (chats.home / "cache/models/o/t/target.gguf").is_file()
    assert "a thought" in terminal.text


def test_esc_stops_a_download_and_the_next_goes_on(chats: Scene, hub: FakeHub) -> None:
    terminal, going_on = picking(chats, environment(hub, chats.home)), threading.Event()
    terminal.wait_for("not downloaded")

    def hold(_: int) -> None:
        if None in hub.downloads("o/t/target.gguf"):  # of all of it: before that, parts of its head are read
            going_on.wait(20)

    hub.sent = hold
    terminal.press("enter")
    folder = chats.home / "cache/models/o/t"
    terminal.wait_for(lambda _: any(folder.glob(".*.partial")))
    terminal.press("escape")
    terminal.wait_for("Enter resumes the download")
    going_on.set()
    assert not (folder / "target.gguf").exists()
    terminal.press("enter")
    terminal.wait_for("is loaded")
    assert (folder / "target.gguf").read_bytes() == hub.files["o/t/target.gguf"].data
