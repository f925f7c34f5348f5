"""A session, somebody who types into its document, and an engine whose every event the test gives."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import cast

from localdflash.lsp.engine_completer import Completer, Event
from localdflash.lsp.generation import Ended, Generator
from localdflash.lsp.session import Cursor, Offer, Pulse, Session
from localdflash.lsp.typing_pace import TypingPace

HEAD = "import os\n\n\n"
TAIL = "\n\nprint(add(1, 2))\n"


class Asked:
    """One request, as the engine got it."""

    def __init__(self, body: Mapping[str, object]) -> None:
        self.body, self.events = body, asyncio.Queue[Event | None]()
        self.closed = False

    def say(self, text: str, *, end: str = "", confidence: float | None = 0.9, index: int = 0) -> None:
        """Generate a piece of text, and its end."""
        self.events.put_nowait({"index": index, "text": text, "confidence": confidence})
        if end:
            self.events.put_nowait({"index": index, "text": "", "finish": end, "confidence": confidence, "tokens": 3})


class Scripted:
    """Stands for the engine."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.live = self.most = 0

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """See `Completer`."""
        asked = Asked(body)
        self.asked.append(asked)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            while event := await asked.events.get():
                yield event
                if "finish" in event and event["index"] == cast(int, body.get("count", 1)) - 1:
                    return
        finally:
            self.live -= 1
            asked.closed = True


class Desk:
    """A session, and somebody who types into its document."""

    def __init__(self) -> None:
        self.completer, self.pace, self.ended = Scripted(), TypingPace(), list[Ended]()
        self.pulse = Pulse()
        self.generator = Generator(
            cast(Completer, self.completer), self.pulse.beat, self.pace.answered, self.ended.append
        )
        self.session = self.of("file:///a.py")
        self.before, self.after, self.version = HEAD, TAIL, 0
        self.closed = ""  # by the editor, in front of what is after the cursor

    def of(self, uri: str) -> Session:
        """A session of the same client."""
        return Session(uri, self.generator, self.pulse, self.pace, lambda _: {"copies": []})

    def type(self, text: str) -> str:
        """Put text at the cursor; what of the shown suggestion came in."""
        self.before += text
        self.version += 1
        return self.session.changed(self.before + self.closed + self.after)

    def type_closed(self, opener: str, closer: str) -> None:
        """Type a bracket that the editor closes."""
        self.closed = closer + self.closed
        self.type(opener)

    def ask(self, *, manual: bool = False, deadline: float = 60.0, grows: bool = True) -> "asyncio.Task[list[Offer]]":
        """Ask at the cursor."""
        version = self.version
        cursor = Cursor(self.before, self.after, manual, lambda: self.version == version, deadline, grows, self.closed)
        return asyncio.create_task(self.session.offers(cursor))

    async def asked(self, count: int) -> Asked:
        """The engine's newest request, once it has had so many."""
        for _ in range(100):
            if len(self.completer.asked) >= count:
                break
            await asyncio.sleep(0)
        assert len(self.completer.asked) == count
        return self.completer.asked[-1]


def texts(offers: list[Offer]) -> list[str]:
    return [offer.text for offer in offers]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
