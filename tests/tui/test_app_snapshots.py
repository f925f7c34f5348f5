"""How the whole app looks, at three widths and in two themes. To take the pictures anew: --snapshot-update."""

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.tui.chat_app import ChatApp
from tests.tui.chat_stage import answered, make, on_stage
from tests.tui.chat_views import CHATS, script, view

DARK, LIGHT = "localdflash-dark", "localdflash-light"
LOOKS = [(80, DARK), *(pytest.param(*look, marks=pytest.mark.slow) for look in ((40, DARK), (140, DARK), (80, LIGHT)))]


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.parametrize("name", ["empty", "streaming", *CHATS])
def test_app(snap_compare: Any, tmp_path: Path, name: str, width: int, theme: str) -> None:
    app, _ = make(*script(name), folder=tmp_path)
    assert snap_compare(app, terminal_size=(width, 32), run_before=view(name, theme))


@pytest.mark.parametrize("theme", ["ansi-dark", "ansi-light"])
@pytest.mark.parametrize("name", ["conversation", "accepted"])
def test_with_the_colours_of_the_terminal(snap_compare: Any, tmp_path: Path, name: str, theme: str) -> None:
    app, _ = make(folder=tmp_path)
    assert snap_compare(app, terminal_size=(80, 32), run_before=view(name, theme))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 40), (40, 1)])
def test_terminals_with_no_room_for_anything(size: tuple[int, int]) -> None:
    async def play(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await pilot.resize_terminal(80, 20)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert app.is_running

    on_stage(play, size=size)
