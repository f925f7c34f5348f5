"""How each dialog and panel looks, at three widths and in two themes. To take the pictures anew: --snapshot-update."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, TextArea

from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.drafting_comparison import ComparedWay, Comparison
from localdflash.chat.model_list import ModelRow, PullProgress
from localdflash.tui.screens import models_screen
from localdflash.tui.screens.chats_screen import ChatPicker
from localdflash.tui.screens.compare_screen import CompareScreen
from localdflash.tui.screens.help_screen import HelpScreen
from localdflash.tui.screens.models_screen import ModelPicker
from localdflash.tui.screens.questions import AskText
from localdflash.tui.screens.roles_screen import RolePicker
from localdflash.tui.speed_panel import SpeedPanel
from localdflash.tui.status_bar import Status, StatusBar
from localdflash.tui.welcome import Welcome
from tests.tui.stage import Stage

NOW = 1_700_000_000.0
HEIGHT = 24
DARK, LIGHT = "localdflash-dark", "localdflash-light"
LOOKS = [(80, DARK), *(pytest.param(*look, marks=pytest.mark.slow) for look in ((40, DARK), (140, DARK), (80, LIGHT)))]


@dataclass
class Speed:
    acceptance: Sequence[float] = (0.93, 0.81, 0.64, 0.4, 0.22, 0.1, 0.0)
    offered: Sequence[int] = (120, 120, 118, 96, 64, 30, 4)
    step_ms: tuple[float, float] | None = (18.2, 31.9)
    by_drafter: dict[str, int] = field(default_factory=lambda: {"dflash": 80, "lookup": 33, "": 7})
    rates: Sequence[float] = (12, 30, 44, 58, 61, 40, 52, 66, 70, 64)
    tau: float | None = 3.87
    accepted: int | None = 344
    drafted: int | None = 552


async def _chats(words: str) -> Sequence[SessionInfo]:
    titles = ("A parser for dates", "Sorting rows by two keys", "Why does this test hang?")
    return [
        SessionInfo(n, title, "/code", "embedded", "", NOW, NOW - 5000.0 * 9**n, 2 + n, "def parse(text: str) -> date:")
        for n, title in enumerate(titles)
        if words in title
    ]


async def _models() -> Sequence[ModelRow]:
    return [
        ModelRow("embedded", "Small Python code model that ships with the package", "1 GB", here=True),
        ModelRow("qwen3-4b", "Qwen3 4B, dense, for 8 GB", "6 GB", here=False, download="2.50 GB"),
        ModelRow("gpt-oss-20b", "gpt-oss 20B", "16 GB", here=False, why_not="needs 16.00 GB, this machine has 8.00 GB"),
    ]


async def _fit(_: str) -> Sequence[str]:
    return ["Fits on llama.cpp: 509.1 MB with a margin, 24.48 GB of memory are free", "Context: 1024 of 1024 tokens"]


async def _described(name: str) -> ModelRow:
    return ModelRow(name, "271.06 MB, 8192 tokens of context, llama Q8_0", "", here=False)


async def _pull(name: str, show: Callable[[PullProgress], None]) -> str:
    show(PullProgress("downloading", "Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 1_210_000_000, 2_500_000_000))
    await asyncio.Event().wait()
    return name


def _compared() -> CompareScreen:
    screen = CompareScreen()
    plain, drafting = ComparedWay(21.4, 256, 1.0, 2, 120.0), ComparedWay(54.9, 256, 3.87, 2, 125.0)
    screen.show(Comparison(plain, drafting, 2, identical=True))
    return screen


ROLES = {"coder": "You write code.\nShort code, in the style of what you are shown.", "brief": "Answer briefly."}
SCREENS: dict[str, Callable[[], Screen[Any]]] = {
    "chats": lambda: ChatPicker(_chats, now=lambda: NOW),
    "chats-none": lambda: ChatPicker(_chats, "zebra", now=lambda: NOW),
    "models": lambda: ModelPicker(_models, _fit, _described, _pull, "embedded"),
    "roles": lambda: RolePicker(ROLES),
    "help": HelpScreen,
    "compare": _compared,
    "name": lambda: AskText("Name of this chat", "A parser for dates"),
    "instructions": lambda: AskText("Instructions before the chat", "Answer briefly.\nNo jokes.", lines=8),
}


async def _still(pilot: Pilot[Any]) -> None:
    """Stop the cursors."""
    for one in pilot.app.screen.query("Input, TextArea"):
        assert isinstance(one, Input | TextArea)
        one.cursor_blink = False
    await pilot.pause(0.05)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def _then(*keys: str) -> Callable[[Pilot[Any]], Any]:
    async def run(pilot: Pilot[Any]) -> None:
        await _still(pilot)
        await pilot.press(*keys)
        await _still(pilot)

    return run


def _picture(snap_compare: Any, app: App[Any], width: int, *keys: str) -> None:
    assert snap_compare(app, terminal_size=(width, HEIGHT), run_before=_then(*keys))


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_screen, "REST", 0.0)
    monkeypatch.setattr(time, "localtime", time.gmtime)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.parametrize("name", SCREENS)
def test_dialogs(snap_compare: Any, name: str, width: int, theme: str) -> None:
    _picture(snap_compare, Stage(screen=SCREENS[name], theme=theme), width)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_the_panel_the_welcome_and_the_line_below(snap_compare: Any, width: int, theme: str) -> None:
    bar = StatusBar(moving=False)
    app = Stage(SpeedPanel(Speed()), Welcome(first_run=True), bar, theme=theme)
    bar.styles.dock = "bottom"

    async def run(pilot: Pilot[Any]) -> None:
        bar.update(Status("embedded", "", 960, 1024, 58.0, True, 3.87, 0.62, 181.0))
        await _still(pilot)

    assert snap_compare(app, terminal_size=(width, HEIGHT), run_before=run)


@pytest.mark.parametrize("theme", ["ansi-dark", "ansi-light"])
def test_with_the_colours_of_the_terminal(snap_compare: Any, theme: str) -> None:
    _picture(snap_compare, Stage(screen=SCREENS["chats"], theme=theme), 80)


def test_a_chat_that_is_named(snap_compare: Any) -> None:
    _picture(snap_compare, Stage(screen=SCREENS["chats"]), 80, "down", "ctrl+r")


def test_help_that_is_searched(snap_compare: Any) -> None:
    _picture(snap_compare, Stage(screen=SCREENS["help"]), 80, *"copy")


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_a_model_that_is_downloaded(snap_compare: Any, width: int, theme: str) -> None:
    async def run(pilot: Pilot[Any]) -> None:
        await _still(pilot)
        await pilot.press("down", "enter")
        await pilot.pause(0.1)

    assert snap_compare(Stage(screen=SCREENS["models"], theme=theme), terminal_size=(width, HEIGHT), run_before=run)


@pytest.mark.parametrize("name", SCREENS)
def test_the_smallest_terminal(snap_compare: Any, name: str) -> None:
    assert snap_compare(Stage(screen=SCREENS[name]), terminal_size=(20, 5), run_before=_still)
