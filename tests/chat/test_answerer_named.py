"""Remote servers: requests use OpenAI's fields alone, and numbers that they do not report are not made up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.answer_sources import NamedServer
from localdflash.chat.answerer import Answerer, ServerInfo
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from tests.chat.asking import QUESTION, Script, answer, ask, asking
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
MODELS = {"object": "list", "data": [{"id": "first", "owned_by": "somebody"}, {"id": "second"}]}
OPENAI = {"messages", "model", "temperature", "stream", "stream_options", "top_p", "max_tokens", "seed"}


@asynccontextmanager
async def named(script: Script, model: str = "", base: str = "/v1") -> AsyncIterator[Answerer]:
    async with await asyncio.start_server(script.connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asking(NamedServer(f"http://127.0.0.1:{port}{base}", None, model)) as answerer:
            yield answerer


async def test_it_is_asked_in_openais_words() -> None:
    script = Script(*[answer("Hello")] * 3, models=MODELS)
    async with named(script) as answerer:
        assert await answerer.ready() == ServerInfo("first")
        await answerer.read_ahead(QUESTION, ChatSettings())  # is not sent
        assert (await ask(answerer, settings=ChatSettings())).text == "Hello"
        everything = ChatSettings(1.0, 5, 0.9, 0.1, 1.5, 7, 99, thinking=False, draft=False)
        await ask(answerer, settings=everything, system="Be brief.", goes_on=True)
        assert await answerer.count(QUESTION, system="", settings=everything) is None
        await ask(answerer, settings=ChatSettings(temperature=1.0))
    plainly, fully, sampled = script.asked
    assert "seed" not in sampled
    assert {*plainly} == OPENAI - {"temperature", "top_p", "max_tokens", "seed"}  # that is left to it
    assert {*fully} == OPENAI
    assert fully["messages"][0] == {"role": "system", "content": "Be brief."}
    assert fully["model"] == "first"
    assert "authorization" not in script.heads[0].lower()


async def test_it_is_not_told_what_was_thought() -> None:
    script = Script(answer("x"), models=MODELS)
    before = [Message("user", "one"), Message("assistant", "<think>\nwhy\n</think>\n\nso"), *QUESTION]
    async with named(script) as answerer:
        async for _ in answerer.answer(before, ChatSettings()):
            pass
    assert [message["content"] for message in script.asked[0]["messages"][:2]] == ["one", "so"]


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x"])
async def test_what_is_no_address(url: str) -> None:
    async with asking(NamedServer(url)) as answerer:
        with pytest.raises(UsageError, match="invalid server address"):
            await ask(answerer, [Message("user", "x")])
