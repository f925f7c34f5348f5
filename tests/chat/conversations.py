"""Conversations with a scripted engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Talk
from tests.support.fake_answerer import FakeAnswerer


@asynccontextmanager
async def open_talk(*script: object, chats: Path | None = None) -> AsyncIterator[tuple[Talk, Any, list[str]]]:
    """Yield a conversation, its engine, and the notices; then close it."""
    notices: list[str] = []
    answerer: Any = FakeAnswerer(*script)
    talk = Talk(answerer, chats, "/home/x", notices.append)
    yield talk, answerer, notices
    await talk.close()
    await talk.close()  # a second call does nothing


def ignore(*_: object) -> None:
    pass


async def exchange(talk: Talk, text: str = "why?") -> Message:
    talk.say(text)
    return await talk.answer(ignore, ignore)


async def stored_messages(talk: Talk) -> list[Message]:
    """Return the messages on disk."""
    assert talk.session is not None
    return await talk.run_in_store(ChatStore.path, talk.session)
