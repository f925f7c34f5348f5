"""Two chats with two models and one engine: each is answered by its own, and asked before another's answer ends."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localdflash.base.errors import LocaldflashError, ModelBusy
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.chat.answerer import Answerer, AnswerPiece, Done
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server import spawn
from localdflash.server.engine_spec import EngineSpec, Others
from tests.chat.asking import ask
from tests.support.daemons import DROPPED_SOCKET, ONE_PAIR, PROGRAM, SLOW, short_home

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
QUESTION = (Message("user", "Hello"),)
BRIEF, LONG = ChatSettings(max_tokens=4), ChatSettings(max_tokens=600, temperature=3.0, seed=1)


@pytest.fixture(autouse=True)
def _short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with short_home(monkeypatch):
        yield


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that is started is slow, and memory holds one pair."""
    monkeypatch.setattr(spawn, "PROGRAM", SLOW + ONE_PAIR + PROGRAM)


class OneChat:
    """A chat, and the lines that it was told."""

    def __init__(self, pair: str, *given: str) -> None:
        self.said: list[str] = []
        self.answerer = Answerer(
            SharedDaemon(EngineSpec({"pair": pair, "threads": 1}, given=given, role="chat")), self.said.append
        )
        self.began = asyncio.Event()

    async def model(self) -> object:
        """Return the model that answers."""
        return (await ask(self.answerer, QUESTION, BRIEF)).done.numbers["model"]

    async def talk(self) -> Done:
        """A long answer, to its end."""
        async for event in self.answerer.answer(QUESTION, LONG):
            match event:
                case AnswerPiece():
                    self.began.set()
                case Done():
                    return event
        raise AssertionError

    def decides(self, others: Others | None) -> None:
        """Set the decision about an answer in another chat; None refuses."""

        async def when_busy(pair: str, busy: ModelBusy) -> Others:
            self.said.append(f"{busy}; {pair}?")
            if others is None:
                raise busy
            return others

        self.answerer.when_busy = when_busy


@asynccontextmanager
async def two_chats(one: str, another: str) -> AsyncIterator[tuple[OneChat, OneChat]]:
    """A chat, and a later one that was started with a pair of its own; both have been answered."""
    chats = OneChat(one), OneChat(another, "pair")
    try:
        for chat, pair in zip(chats, (one, another), strict=True):
            assert await chat.model() == pair
        yield chats
    finally:
        for chat in chats:
            await chat.answerer.close()
        await asyncio.sleep(0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("others", ["wait", "end", None])
async def test_an_answer_in_another_chat_is_asked_about(tiny: str, others: Others | None) -> None:
    async with two_chats("embedded", tiny) as (one, another):
        one.decides(others)
        talking = asyncio.create_task(another.talk())
        await another.began.wait()
        asked = asyncio.create_task(one.model())
        while not one.said:
            await asyncio.sleep(0.01)
        assert one.said == ["target.gguf is answering in another chat; embedded?"]
        match others:
            case "wait":
                await asyncio.sleep(0.5)
                assert (one.answerer.stage, talking.done(), asked.done()) == ("waiting", False, False)
                talking.cancel()
                assert await asked == "embedded"
            case "end":
                assert await asked == "embedded"
                with pytest.raises(LocaldflashError, match="made room for another chat's model"):
                    await talking
            case _:
                with pytest.raises(ModelBusy):
                    await asked
                assert one.answerer.stage == "ready"
                talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
