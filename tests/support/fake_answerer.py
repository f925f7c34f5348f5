"""In-process engine for the chat with scripted answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from localdflash.base.errors import ModelError
from localdflash.chat.answerer import AnswerPiece, Done, ServerInfo
from localdflash.chat.messages import Message, StepRecord
from localdflash.chat.sampling_settings import ChatSettings

STEP = StepRecord("dflash", 2, 1, (1, 2), 3.0)
ABOUT = ServerInfo("tiny", 1000, "torch", "cpu", True, "", {})
NUMBERS = {"tokens": 3, "prompt_tokens": 40, "tokens_per_second": 50.0, "tau": 1.5, "drafted": 2, "accepted": 1}
ANSWER = (AnswerPiece("It ", STEP), AnswerPiece("is.", None), Done("stop", NUMBERS))


class FakeAnswerer:
    """Answers with `script`: pieces, an exception, or None to wait forever."""

    info: ServerInfo | None = ABOUT
    stage = "ready"
    is_localdflash = True
    tokens: int | None = 42

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.on_stage: Callable[[str], None] = lambda _: None
        self.requests: list[tuple[list[Message], str, bool]] = []
        self.read: list[list[Message]] = []  # by `read_ahead`
        self.closed = 0
        self.waits = asyncio.Event()

    async def answer(
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "", continue_last: bool = False
    ) -> AsyncGenerator[Any, None]:
        assert isinstance(settings, ChatSettings)
        self.requests.append((list(messages), system, continue_last))
        try:
            for item in self.script:
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    self.waits.set()
                    await asyncio.Event().wait()
                yield item
        finally:
            self.closed += 1

    async def ready(self) -> ServerInfo:
        """Return the server's information immediately."""
        assert self.info
        return self.info

    async def read_ahead(self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "") -> None:
        """Record the messages."""
        assert isinstance(settings, ChatSettings)
        self.read.append(list(messages))

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        """Return the given number of tokens for each message."""
        return None if self.tokens is None else self.tokens * len(messages)

    async def check_model(self, pair: str) -> None:
        """Raise the server's error for a model called "wrong"."""
        if pair == "wrong":
            raise ModelError("no pair 'wrong'")

    async def load(self, pair: str) -> ServerInfo:
        """Change the name of the pair."""
        self.info = ServerInfo(pair, 2000)
        return self.info

    async def close(self) -> None:
        """Do nothing."""
