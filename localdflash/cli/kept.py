"""A chat that is printed, and kept like those on the screen, so that one can go on with the other's."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from localdflash.chat.messages import Finish, Message, prompt_text
from localdflash.chat.store import ChatStore
from localdflash.cli.headless import say
from localdflash.cli.talking import Reply
from localdflash.errors import StoreFailed, StoreLost, UsageError
from localdflash.files import paths

FINISHES: tuple[Finish, ...] = ("stop", "length", "context", "cancelled")


def chats_file() -> Path:
    """Where chats are kept."""
    return paths.data_folder() / "chats.db"


class Kept:
    """The chat under way, which joins the store with its first message; `system` are the instructions before it."""

    def __init__(self, chats: Path | None, model: str, system: str) -> None:
        self._store, self._model, self._system = ChatStore.open(chats, say), model, system
        self._session: int | None = None
        self._last: int | None = None

    def open(self, session: int | Literal["latest"]) -> tuple[str, Sequence[tuple[str, str]]]:
        """Go on with an earlier chat: its instructions and messages (role, text). UsageError where there is none."""
        if session == "latest":
            latest = self._store.latest(os.getcwd())
            if latest is None:
                raise UsageError("--continue: there is no earlier chat in this folder")
            session = latest.id
        self._system = self._system or self._store.info(session).system
        messages = self._store.path(session)
        self._session, self._last = session, messages[-1].id if messages else None
        return self._system, [(message.role, prompt_text(message)) for message in messages]

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def new(self) -> None:
        """Another chat."""
        self._session = self._last = None

    def add(self, question: str, answer: str, reply: Reply) -> None:
        """Keep one exchange; what fails is said."""
        finish: Finish = next((known for known in FINISHES if known == reply.finish), "stop")
        exchange = (
            Message("user", question),
            Message("assistant", answer, finish=finish, numbers=reply.numbers),
        )
        try:
            try:
                self._add(exchange)
            except StoreLost as error:
                say(f"{error}; what follows is kept as another chat")
                self.new()
                self._add(exchange)
        except StoreFailed as error:
            say(f"not saved: {error}")

    def _add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self._session is None:
                self._session = self._store.create(folder=os.getcwd(), model=self._model, system=self._system)
            self._last = self._store.add(self._session, self._last, message).id
