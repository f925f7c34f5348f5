"""The whole app over an engine that says what it is told to say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from localdflash.chat.answer_sources import NamedServer
from localdflash.tui.app_base import ChatStart
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import ANSWER, FakeAnswerer
from tests.tui.stage import playing, shown, wait_until

__all__ = ["answered", "chat", "command", "make", "shown", "texts", "typed", "wait_until"]


def make(*script: object, folder: Path | None = None, chats: Path | None = None, **start: Any) -> tuple[ChatApp, Any]:
    """An app whose engine has this script, and the engine."""
    app = ChatApp(ChatStart(NamedServer("http://127.0.0.1:9"), folder or Path.cwd(), chats, **start))
    app.animation_level = "none"
    answerer: Any = FakeAnswerer(*(script or ANSWER))
    answerer.on_stage = app.talk.answerer.on_stage
    app.talk.answerer = answerer
    return app, answerer


@asynccontextmanager
async def chat(
    *says: object, size: tuple[int, int] = (100, 30), **start: Any
) -> AsyncGenerator[tuple[Pilot[Any], ChatApp, Any]]:
    """Run the app over an engine with this script."""
    app, answerer = make(*says, **start)
    async with playing(app, size) as pilot:
        yield pilot, app, answerer


def texts(app: ChatApp) -> list[str]:
    """The messages of the chat."""
    return [message.text for message in app.talk.messages]


async def typed(pilot: Pilot[Any], text: str) -> None:
    """Type a text into the prompt and send it."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    app.prompt.text = text
    app.prompt.move_cursor(app.prompt.document.end)
    keys = ("escape", "enter") if text.startswith("/") else ("enter",)  # Esc closes the suggestions
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()


command = typed


async def answered(pilot: Pilot[Any], *questions: str) -> None:
    """Ask questions, each after the end of the answer before it."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    for text in questions or ("why?",):
        talk, before = app.talk, len(app.talk.messages)
        await typed(pilot, text)
        await wait_until(
            pilot,
            lambda: len(talk.messages) > before and not talk.is_answering and bool(talk.messages[-1].finish),  # noqa: B023
        )
        await pilot.pause()
