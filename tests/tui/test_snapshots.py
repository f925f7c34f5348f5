"""Snapshots of each screen at 80x24, and of three at 40x15. To update them: --snapshot-update.

The screens show no time, no blinking cursor and nothing that moves.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, TextArea

from localdflash.chat.acceptance import Acceptance
from localdflash.chat.answerer import AnswerPiece
from localdflash.chat.attachable_files import FileMatch
from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.drafting_comparison import Comparison, ModeResult
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.model_list import ModelRow, PullProgress
from localdflash.tui import highlight
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.screens import models_screen
from localdflash.tui.screens.chats_screen import ChatPicker
from localdflash.tui.screens.compare_screen import CompareScreen
from localdflash.tui.screens.diff_screen import DiffScreen
from localdflash.tui.screens.help_screen import HelpScreen
from localdflash.tui.screens.models_screen import ModelPicker
from localdflash.tui.screens.questions import TextDialog
from tests.tui.chat_stage import make_app, type_and_send
from tests.tui.desk import Desk, type_in
from tests.tui.stage import Stage, wait_until
from tests.tui.test_dialogs import confirm
from tests.tui.test_diff_screen import ALL, Writer

NOW = 1_700_000_000.0
NUMBERS = {
    "tokens": 212,
    "prompt_tokens": 640,
    "tokens_per_second": 58.0,
    "tau": 3.87,
    "drafted": 552,
    "accepted": 344,
    "ttft_ms": 181.0,
    "model": "qwen3-4b",
}
QUESTION = Message(
    "user",
    "Why is `area` of a Box negative?\nAnd how do I test it?",
    (Attachment("file", "src/boxes/box.py", "class Box:\n" * 41),),
    created=0.0,
)
RICH = '''<think>
The height is negative.
</think>

## A sign is lost

`area` multiplies **two** differences, and *one* is reversed. See [the docs](https://docs.python.org/3/):

1. `right - left` is positive
   - screens count rows from the top

> Rows grow downwards on every screen.

| where  | rows grow | height         |
|--------|:---------:|---------------:|
| screen | down      | `bottom - top` |

```python
def area(self, scale: float = 1.0) -> float:
    """Cells."""
    return (self.right - self.left) * scale  # cells
```
'''
STREAM = "The height is negative:\n\n```python\ndef height(self):\n    return self.bottom - sel"
STEPS = (
    (StepRecord("dflash", 7, 4, (4, 2, 7, 9, 2), 21.0), "The height is negative: "),
    (StepRecord("lookup", 4, 2, (10, 4, 6), 12.0), "`bottom - top` says "),
    (StepRecord("", 0, 0, (4,), 9.0), "so. "),
    (StepRecord("dflash", 7, 6, (4, 4, 5, 2, 2, 1, 8), 22.0), "Größe über 1: naïvely."),
)


def _answer(text: str, **fields: Any) -> Message:
    return Message("assistant", text, finish="stop", numbers=NUMBERS, created=0.0, **fields)


def _speed() -> Acceptance:
    speed = Acceptance(clock=lambda: 1.0)
    for step, _ in STEPS * 12:
        speed.add(step)
    return speed


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_screen, "FIT_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(time, "localtime", time.gmtime)


async def _wait_until_still(pilot: Pilot[Any]) -> None:
    """Stop the cursors, and wait for all workers and threads."""
    for one in pilot.app.screen.query("Input, TextArea"):
        assert isinstance(one, Input | TextArea)
        one.cursor_blink = False
    await pilot.pause(0.05)
    if isinstance(app := pilot.app, ChatApp):
        await wait_until(pilot, lambda: _is_highlighted(app))
    else:
        await app.workers.wait_for_complete()
    await pilot.pause()


def _is_highlighted(app: ChatApp) -> bool:
    colouring = app.transcript._lexer_worker
    return (colouring is None or colouring.is_finished) and not highlight.missing_languages


async def _streaming(pilot: Pilot[Any], app: ChatApp) -> None:
    await type_and_send(pilot, QUESTION.text)
    await wait_until(pilot, lambda: app.transcript.shown_text() == STREAM)
    app.talk.acceptance = _speed()
    app.refresh_status()


@pytest.mark.parametrize("size", [(80, 24), (40, 15)], ids=["80x24", "40x15"])
@pytest.mark.parametrize("view", ["welcome", "conversation"])
def test_chat(snap_compare: Any, tmp_path: Path, view: str, size: tuple[int, int]) -> None:
    async def prepare(pilot: Pilot[Any]) -> None:
        if view == "conversation":
            app.talk.messages[:] = [QUESTION, _answer(RICH)]
            app.show_chat()
            await pilot.pause()
        await _wait_until_still(pilot)

    app, _ = make_app(folder=tmp_path)
    assert snap_compare(app, terminal_size=size, run_before=prepare)


def test_streaming(snap_compare: Any, tmp_path: Path) -> None:
    async def prepare(pilot: Pilot[Any]) -> None:
        await _streaming(pilot, app)
        await _wait_until_still(pilot)

    app, _ = make_app(AnswerPiece(STREAM, STEPS[0][0]), None, folder=tmp_path)
    assert snap_compare(app, terminal_size=(80, 24), run_before=prepare)


def test_acceptance_view_and_speed_panel(snap_compare: Any, tmp_path: Path) -> None:
    async def prepare(pilot: Pilot[Any]) -> None:
        text, steps = "".join(text for _, text in STEPS), tuple(step for step, _ in STEPS)
        app.talk.messages[:] = [QUESTION, _answer(text, steps=steps)]
        app.show_chat()
        await pilot.pause()
        app.action_accepted()
        app.talk.acceptance = _speed()
        app.action_speed()
        await _wait_until_still(pilot)

    app, _ = make_app(folder=tmp_path)
    assert snap_compare(app, terminal_size=(80, 24), run_before=prepare)


async def _chats(words: str) -> Sequence[SessionInfo]:
    titles = ("A parser for dates", "Sorting rows by two keys", "Why does this test hang?")
    return [
        SessionInfo(n, title, "/code", "embedded", "", NOW, NOW - 5000.0 * 9**n, 2 + n, "def parse(text: str) -> date:")
        for n, title in enumerate(titles)
        if words in title
    ]


async def _models() -> Sequence[ModelRow]:
    return [
        ModelRow("embedded", "Small Python code model that ships with the package", "1 GB", is_downloaded=True),
        ModelRow("qwen3-4b", "Qwen3 4B, dense, for 8 GB", "6 GB", is_downloaded=False, download="2.50 GB"),
        ModelRow(
            "gpt-oss-20b",
            "gpt-oss 20B",
            "16 GB",
            is_downloaded=False,
            why_not="needs 16.00 GB, this machine has 8.00 GB",
        ),
    ]


async def _fit(_: str) -> Sequence[str]:
    return ["Fits on llama.cpp: 509.1 MB with a margin, 24.48 GB of memory are free", "Context: 1024 of 1024 tokens"]


async def _describe(name: str) -> ModelRow:
    return ModelRow(name, "271.06 MB, 8192 tokens of context, llama Q8_0", "", is_downloaded=False)


async def _pull(name: str, show: Callable[[PullProgress], None]) -> str:
    show(PullProgress("downloading", "Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 1_210_000_000, 2_500_000_000))
    await asyncio.Event().wait()
    return name


def _compare_screen() -> CompareScreen:
    screen = CompareScreen()
    plain, drafting = ModeResult([21.4] * 4, 512, 1.0, 120.0), ModeResult([54.9] * 4, 512, 3.87, 125.0)
    screen.show(Comparison(plain, drafting, identical=True))
    return screen


SCREENS: dict[str, Callable[[], Screen[Any]]] = {
    "chats": lambda: ChatPicker(_chats, now=lambda: NOW),
    "models": lambda: ModelPicker(_models, _fit, _describe, _pull, "embedded"),
    "help": HelpScreen,
    "compare": _compare_screen,
    "instructions": lambda: TextDialog("Instructions before the chat", "Answer briefly.\nNo jokes.", lines=8),
    "diff": lambda: DiffScreen(ALL, Writer().apply),
    "question": confirm,
}


def _compare(snap_compare: Any, app: App[Any], size: tuple[int, int]) -> None:
    assert snap_compare(app, terminal_size=size, run_before=_wait_until_still)


@pytest.mark.parametrize("name", SCREENS)
def test_dialogs(snap_compare: Any, name: str) -> None:
    _compare(snap_compare, Stage(screen=SCREENS[name]), (80, 24))


def test_dialog_on_a_small_terminal(snap_compare: Any) -> None:
    _compare(snap_compare, Stage(screen=SCREENS["diff"]), (40, 15))


def test_prompt_with_suggestions_and_attachments(snap_compare: Callable[..., bool], tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files.find = lambda query, limit=30: [  # type: ignore[method-assign]
        FileMatch("src/parser/box.py", marked=(11, 12, 13)),
        FileMatch("src/parser/box.py:Box", "", (18, 19, 20)),
        FileMatch(
            "a/very/long/path/that/does/not/fit/into/a/narrow/terminal/box_of_things_and_so_on.md", marked=(58, 59, 60)
        ),
        FileMatch("文件/box.txt", marked=(3, 4, 5)),
    ]

    async def prepare(pilot: Pilot[Any]) -> None:
        desk.paste("x\n" * 120)
        desk.paste("y" * 4_200)
        await type_in(pilot, "see @box")
        await wait_until(pilot, lambda: bool(desk.suggestions.rows))
        await pilot.press("down")
        await pilot.pause()

    assert snap_compare(desk, terminal_size=(80, 24), run_before=prepare)
