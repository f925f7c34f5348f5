"""The whole app over an engine that says what it is told to say."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from localdflash.chat.answer_sources import NamedServer
from localdflash.tui.app_base import Start
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import ANSWER, FakeAnswerer
from tests.tui.stage import play, shown, wait_until

__all__ = ["answered", "command", "make", "on_stage", "shown", "typed", "wait_until"]


def make(*script: object, folder: Path | None = None, chats: Path | None = None, **start: Any) -> tuple[ChatApp, Any]:
    """An app whose engine has this script, and the engine."""
    app = ChatApp(Start(NamedServer("http://127.0.0.1:9"), folder or Path.cwd(), chats, **start))
    app.animation_level = "none"
    answerer: Any = FakeAnswerer(*(script or ANSWER))
    answerer.on_stage = app.talk.answerer.on_stage
    app.talk.answerer = answerer
    return app, answerer


def on_stage(
    script: Callable[[Pilot[Any], ChatApp, Any], Coroutine[Any, Any, None]],
    *says: object,
    size: tuple[int, int] = (100, 30),
    **start: Any,
) -> ChatApp:
    """Run the app and do with it what the script says."""

    async def whole() -> ChatApp:
        app, answerer = make(*says, **start)
        await play(app, lambda pilot: script(pilot, app, answerer), size)
        return app

    return asyncio.run(whole())


async def typed(pilot: Pilot[Any], text: str) -> None:
    """Text that was typed into the prompt and sent."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    app.prompt.text = text
    app.prompt.move_cursor(app.prompt.document.end)
    keys = ("escape", "enter") if text.startswith("/") else ("enter",)  # Esc closes the suggestions
    await pilot.press(*keys)
    await pilot.pause()


async def command(pilot: Pilot[Any], line: str) -> None:
    """A slash command, and what it begins."""
    await typed(pilot, line)
    await pilot.pause()


async def answered(pilot: Pilot[Any], text: str = "why?") -> None:
    """A question and the end of its answer."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    before = len(app.talk.messages)
    await typed(pilot, text)
    await wait_until(
        pilot, lambda: len(app.talk.messages) > before and not app.talk.answering and bool(app.talk.messages[-1].finish)
    )
    await pilot.pause()
