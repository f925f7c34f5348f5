"""Two chats with two models and one daemon: loading one may wait for, end or spare the other's answer."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import LocaldflashError, ModelBusy
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server import spawn
from localdflash.server.engine_spec import EngineSpec, EvictionPolicy
from tests.chat.asking import ask, open_answerer
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


def source(pair: str, *given: str) -> SharedDaemon:
    return SharedDaemon(EngineSpec({"pair": pair, "threads": 1}, given=given, role="chat"))


@pytest.mark.parametrize("others", ["wait", "end", None])
async def test_loading_asks_about_an_answer_in_another_chat(
    tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, others: EvictionPolicy | None
) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", SLOW + ONE_PAIR + PROGRAM)  # slow, and memory holds one pair
    tiny, questions, began = str(tiny_pair / "target.gguf"), list[str](), asyncio.Event()

    async def when_busy(pair: str, busy: ModelBusy) -> EvictionPolicy:
        questions.append(f"{busy}; {pair}?")
        if others is None:
            raise busy
        return others

    async def talk() -> None:
        async for _ in second.answer(QUESTION, LONG):
            began.set()

    async def model(chat: Answerer) -> object:
        return (await ask(chat, QUESTION, BRIEF)).done.numbers["model"]

    async with open_answerer(source("embedded")) as first, open_answerer(source(tiny, "pair")) as second:
        first.when_busy = when_busy
        assert (await model(first), await model(second)) == ("embedded", tiny)
        streaming = asyncio.create_task(talk())
        await began.wait()
        asking = asyncio.create_task(model(first))
        while not questions:
            await asyncio.sleep(0.01)
        assert questions == ["target.gguf is answering in another chat; embedded?"]
        match others:
            case "wait":
                await asyncio.sleep(0.5)
                assert (first.stage, streaming.done(), asking.done()) == ("waiting", False, False)
                streaming.cancel()
                assert await asking == "embedded"
            case "end":
                assert await asking == "embedded"
                with pytest.raises(LocaldflashError, match="was unloaded for another chat's model"):
                    await streaming
            case _:
                with pytest.raises(ModelBusy):
                    await asking
                assert first.stage == "ready"
                streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)
