"""Whole app with a scripted engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from localdflash.chat.answer_sources import NamedServer
from localdflash.tui.app_base import ChatStart
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import ANSWER, FakeAnswerer
from tests.tui.stage import run_app, screen_text, wait_until

__all__ = ["ask_and_wait", "chat", "command", "make_app", "screen_text", "texts", "type_and_send", "wait_until"]


def make_app(
    *script: object, folder: Path | None = None, chats: Path | None = None, **start: Any
) -> tuple[ChatApp, Any]:
    """Return an app with a scripted engine, and the engine."""
    app = ChatApp(ChatStart(NamedServer("http://127.0.0.1:9"), folder or Path.cwd(), chats, **start))
    app.animation_level = "none"
    answerer: Any = FakeAnswerer(*(script or ANSWER))
    answerer.on_stage = app.talk.answerer.on_stage
    app.talk.answerer = answerer
    return app, answerer


@asynccontextmanager
async def chat(
    *script: object, size: tuple[int, int] = (100, 30), **start: Any
) -> AsyncGenerator[tuple[Pilot[Any], ChatApp, Any]]:
    """Run the app with a scripted engine."""
    app, answerer = make_app(*script, **start)
    async with run_app(app, size) as pilot:
        yield pilot, app, answerer


def texts(app: ChatApp) -> list[str]:
    """Return the texts of the chat's messages."""
    return [message.text for message in app.talk.messages]


async def type_and_send(pilot: Pilot[Any], text: str) -> None:
    """Type a text into the prompt and send it."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    app.prompt.text = text
    app.prompt.move_cursor(app.prompt.document.end)
    keys = ("escape", "enter") if text.startswith("/") else ("enter",)  # Esc closes the suggestions
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()


command = type_and_send


async def ask_and_wait(pilot: Pilot[Any], *questions: str) -> None:
    """Ask questions one after the other, and wait for each answer."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    for text in questions or ("why?",):
        talk, before = app.talk, len(app.talk.messages)
        await type_and_send(pilot, text)
        await wait_until(
            pilot,
            lambda: len(talk.messages) > before and not talk.is_answering and bool(talk.messages[-1].finish),  # noqa: B023
        )
        await pilot.pause()
