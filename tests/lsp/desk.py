"""A session, a user who types into its document, and an engine whose every event the test gives."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import cast

from localdflash.lsp.engine_completer import DaemonCompleter, Event
from localdflash.lsp.session import Cursor, Pulse, Session, SuggestionOffer
from localdflash.lsp.suggestions import Generator
from localdflash.lsp.typing_pace import TypingPace

HEAD = "import os\n\n\n"
TAIL = "\n\nprint(add(1, 2))\n"
ADD = "def add(a, b):"


class Request:
    """One request, as the engine got it."""

    def __init__(self, body: Mapping[str, object]) -> None:
        self.body, self.events = body, asyncio.Queue[Event | None]()
        self.closed = False

    def say(
        self, text: str, *, end: str = "", confidence: float | None = 0.9, index: int = 0, score: float = -1.0
    ) -> None:
        """Generate a piece of text, and its end."""
        self.events.put_nowait({"index": index, "text": text, "confidence": confidence})
        if end:
            known = {"confidence": confidence, "score": score, "tokens": 3}
            self.events.put_nowait(cast(Event, {"index": index, "text": "", "finish": end, **known}))


class ScriptedEngine:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.live = self.most = 0

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        request = Request(body)
        self.requests.append(request)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            while event := await request.events.get():
                yield event
                if "finish" in event and event["index"] == cast(int, body.get("count", 1)) - 1:
                    return
        finally:
            self.live -= 1
            request.closed = True


class Desk:
    def __init__(self) -> None:
        self.engine, self.pace, self.pulse = ScriptedEngine(), TypingPace(), Pulse()
        self.generator = Generator(
            cast(DaemonCompleter, self.engine), self.pulse.beat, self.pace.answered, lambda _numbers: None
        )
        self.session = self.session_of("file:///a.py")
        self.before, self.after, self.version = HEAD, TAIL, 0

    def session_of(self, uri: str) -> Session:
        """Make another session of the same client."""
        return Session(uri, self.generator, self.pulse, self.pace, lambda _: {"copies": []})

    def type(self, text: str) -> str:
        """Put text at the cursor; return the part of the shown suggestion that it inserts."""
        self.before += text
        self.version += 1
        return self.session.changed(self.before + self.after)

    def ask(
        self, *, manual: bool = False, deadline: float = 60.0, grows: bool = True, patient: bool = True
    ) -> "asyncio.Task[list[SuggestionOffer]]":
        version = self.version
        cursor = Cursor(self.before, self.after, manual, lambda: self.version == version, deadline, patient, grows)
        return asyncio.create_task(self.session.offers(cursor))

    async def asked(self, count: int = 0) -> Request:
        """Wait for the engine's request of this number (default: the next one) and return it."""
        count = count or len(self.engine.requests) + 1
        for _ in range(100):
            if len(self.engine.requests) >= count:
                break
            await asyncio.sleep(0)
        assert len(self.engine.requests) == count
        return self.engine.requests[-1]

    async def shown(self, text: str = ADD, end: str = "line") -> SuggestionOffer:
        """Have a suggestion shown at the cursor."""
        waiting = self.ask()
        (await self.asked()).say(text, end=end)
        (offer,) = await waiting
        return offer


def texts(offers: list[SuggestionOffer]) -> list[str]:
    return [offer.text for offer in offers]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
