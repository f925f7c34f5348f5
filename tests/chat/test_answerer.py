"""Answers of a running server, of remote servers, and of scripted servers that die at any point or send nonsense."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import (
    LocaldflashError,
    ModelError,
    UsageError,
)
from localdflash.chat.answer_sources import NamedServer
from localdflash.chat.answerer import Answerer, AnswerRestart, ServerInfo
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.models.backend_names import CHECKING_GPU
from tests.chat.asking import (
    END,
    GREEDY,
    HEAD,
    QUESTION,
    At,
    Script,
    answer,
    ask,
    asking,
    chunk,
    event,
    plain,
    scripted,
    text,
)
from tests.support import daemons

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


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
STEP = {"drafter": "lookup", "drafted": 3, "accepted": 1, "sizes": [1, 1], "ms": 2.0, "tokens": ["a", "b"]}


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A socket."""
    home.mkdir()
    return home / "s"


async def test_what_is_not_said_is_as_the_models_makers_say(path: Path) -> None:
    script = Script(*[answer("a")] * 2)
    script.about |= {"context": 4000, "sampling": {"temperature": 0.6, "top_k": 20, "top_p": 0.95}}
    async with scripted(script, path) as source, asking(source) as answerer:
        await ask(answerer, settings=ChatSettings())
        await ask(answerer, settings=ChatSettings(temperature=0.0, max_tokens=0))
    drawn, told = script.asked
    assert (drawn["temperature"], drawn["top_k"], drawn["top_p"]) == (0.6, 20, 0.95)
    assert isinstance(drawn["top_k"], int)  # the engine takes nothing else
    assert (drawn["max_tokens"], drawn["end_repeats"]) == (1000, True)
    assert isinstance(drawn["seed"], int)
    assert told["temperature"] == 0.0
    assert "max_tokens" not in told


async def test_an_answer_goes_on_where_the_engine_died(path: Path) -> None:
    told = ["a", "bc"]
    cut = HEAD + b"".join(map(text, told))
    script = Script(cut, cut[:-5], answer("ab", "cd"))
    async with scripted(script, path) as source, asking(source) as answerer:
        found = await ask(answerer, settings=ChatSettings(temperature=1.0))
    assert (found.text, found.done.finish) == ("abcd", "stop")
    assert AnswerRestart() not in found.events
    assert source.opened == 3
    first, second, third = script.asked
    assert first == second == third


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({"backend": "cuda", "gpu_check": "sound"}, "scripted runs on cuda from now on"),
        ({"gpu_check": "its check failed"}, "cpu runs scripted; no CUDA engine: its check failed"),
    ],
)
async def test_the_end_of_a_gpu_check_is_reported_before_the_next_answer(
    path: Path, after: dict[str, str], line: str
) -> None:
    script = Script(*[answer("a")] * 4)
    script.about |= {"context": 4000, "backend": "cpu", "gpu_check": CHECKING_GPU}
    lines = list[str]()
    async with scripted(script, path) as source, asking(source, lines.append) as answerer:
        await ask(answerer)
        await ask(answerer)
        assert lines == []
        script.about |= after
        await ask(answerer)
        await ask(answerer)
    assert lines == [line]


@pytest.mark.parametrize(("code", "begun"), [("model_not_found", False), ("model_changed", True)])
async def test_a_model_that_is_no_longer_there_is_loaded_again(path: Path, code: str, begun: bool) -> None:
    error = {"error": {"message": "it is not loaded", "code": code}}
    refused = HEAD + text("a") + event(**error) + END if begun else plain(404, error)

    script = Script(answer("a"), refused, answer("ab"))
    async with scripted(script, path) as source, asking(source) as answerer:
        await ask(answerer)
        assert (await ask(answerer)).text == "ab"
        assert script.others[-1] == ("/load", {"pair": "scripted", "role": "chat", "others": "refuse"})
        assert [asked["model"] for asked in script.asked] == ["scripted", "scripted", "other"]


@pytest.mark.parametrize(
    "nonsense",
    [
        HEAD + chunk(b"data: {nonsense\n\n") + END,
        HEAD + chunk(b'data: {"choices": [{"delta": {"content": 5}}]}\n\n') + END,
        HEAD + event(error=["?"]) + END,
        HEAD + text("a", {**STEP, "sizes": [-1]}),
        HEAD + text("a", {**STEP, "accepted": 9}),
        HEAD + chunk(b"data: " + b"[" * 9999 + b"\n\n" + b'data: {"choices": ' + b"[" * 99999 + b"\n\n"),
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
    ids=range(7),
)
async def test_nonsense_is_one_line(path: Path, nonsense: bytes) -> None:
    async with scripted(Script(*[nonsense] * 9), path) as source, asking(source) as answerer:
        with pytest.raises(LocaldflashError) as caught:
            await ask(answerer)
        assert str(caught.value)
        assert "\n" not in str(caught.value)


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
