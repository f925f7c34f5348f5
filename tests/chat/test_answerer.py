"""Answers of a running server: the text, the steps and the numbers."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ModelError, UsageError
from localdflash.chat.answer_sources import NamedServer
from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from tests.chat.asking import GREEDY, QUESTION, At, ask, asking

LONG = ChatSettings(temperature=5.0, seed=0, max_tokens=0)  # an answer that fills the context
CHAT = "/v1/chat/completions"
SAMPLED = ChatSettings(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, repetition_penalty=1.1, seed=5, max_tokens=48)


@pytest.fixture
async def answerer(live: Any) -> AsyncIterator[Answerer]:
    async with asking(At(live.socket)) as opened:
        yield opened


def whole(live: Any, **fields: Any) -> dict[str, Any]:
    """The server's own answer."""
    body = {"messages": [{"role": "user", "content": QUESTION[0].text}], "temperature": 0, "max_tokens": 48, **fields}
    with live.client() as client:
        told: dict[str, Any] = client.post(CHAT, json=body).json()
    return told


def content(told: dict[str, Any]) -> str:
    return str(told["choices"][0]["message"]["content"])


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
async def test_an_answer_is_the_servers(live: Any, answerer: Answerer, settings: ChatSettings) -> None:
    drafted = await ask(answerer, settings=settings)
    plain = await ask(answerer, settings=replace(settings, draft=False))
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    fields = {name: getattr(settings, name) for name in names} if settings is SAMPLED else {}
    assert drafted.text == plain.text == content(whole(live, **fields))
    assert (drafted.done.numbers["draft"], plain.done.numbers["draft"]) == (True, False)
    assert drafted.done.numbers["drafted"] > plain.done.numbers["drafted"] == 0


async def test_what_was_read_ahead_is_not_read_again(answerer: Answerer) -> None:
    draft = "Write a function that tells how far two words are apart, in letters that have to be"
    await answerer.read_ahead([Message("user", draft)], GREEDY)  # nothing is there yet: no engine is started
    assert answerer.stage == ""
    await answerer.ready()
    await answerer.read_ahead([Message("user", "x " * 9000)], GREEDY)  # an error is left to the question
    assert answerer.stage == "ready"
    await answerer.read_ahead([Message("user", draft)], GREEDY)
    ahead = (await ask(answerer, [Message("user", f"{draft} changed.")])).done.numbers
    assert ahead["prompt_tokens"] - ahead["cached_tokens"] < 12


async def test_our_engine_over_tcp_tells_as_much(live: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(live.key)
    key.chmod(0o600)
    async with asking(NamedServer(f"http://127.0.0.1:{live.port}/v1/", key)) as answerer:
        about = await answerer.ready()
        assert (about.pair, about.context, about.drafter) == ("embedded", 1024, True)
        answer = await ask(answerer)
        assert answer.text == content(whole(live))
        assert answer.done.numbers["drafted"] > 0
        assert await answerer.count(QUESTION, system="", settings=GREEDY) == answer.done.numbers["prompt_tokens"]
        with pytest.raises(ModelError, match="qwen"):
            await answerer.load("qwen")
        assert (await answerer.load("embedded")).pair == "embedded"


async def test_a_wrong_key_is_told(live: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("wrong")
    key.chmod(0o600)
    async with asking(NamedServer(f"http://127.0.0.1:{live.port}", key)) as answerer:
        for _ in range(2):
            with pytest.raises(UsageError, match="key"):
                await answerer.ready()
        assert answerer.stage == "gone"
