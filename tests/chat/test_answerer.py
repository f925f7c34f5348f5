"""Answers of a running server, of remote servers, and of scripted servers that die or send malformed replies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError, UsageError
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
    FixedSource,
    ScriptedServer,
    answer,
    ask,
    chunk,
    event,
    open_answerer,
    response,
    serve_script,
    text,
)
from tests.support import daemons

CHAT = "/v1/chat/completions"
SAMPLED = ChatSettings(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, repetition_penalty=1.1, seed=5, max_tokens=48)


@pytest.fixture
async def answerer(live: Any) -> AsyncIterator[Answerer]:
    async with open_answerer(FixedSource(live.socket)) as opened:
        yield opened


def server_answer(live: Any, **fields: Any) -> dict[str, Any]:
    """Return the answer of the server without a chat."""
    body = {"messages": [{"role": "user", "content": QUESTION[0].text}], "temperature": 0, "max_tokens": 48, **fields}
    with live.client() as client:
        answer: dict[str, Any] = client.post(CHAT, json=body).json()
    return answer


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
async def test_answer_equals_the_server_answer_with_and_without_drafting(
    live: Any, answerer: Answerer, settings: ChatSettings
) -> None:
    drafted = await ask(answerer, settings=settings)
    plain = await ask(answerer, settings=replace(settings, draft=False))
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    fields = {name: getattr(settings, name) for name in names} if settings is SAMPLED else {}
    assert drafted.text == plain.text == content(server_answer(live, **fields))
    assert (drafted.done.numbers["draft"], plain.done.numbers["draft"]) == (True, False)
    assert drafted.done.numbers["drafted"] > plain.done.numbers["drafted"] == 0


async def test_read_ahead_prompt_is_cached(answerer: Answerer) -> None:
    draft = "Write a function that tells how far two words are apart, in letters that have to be"
    await answerer.read_ahead([Message("user", draft)], GREEDY)  # no engine is connected yet, and none is started
    assert answerer.stage == ""
    await answerer.ready()
    await answerer.read_ahead([Message("user", "x " * 9000)], GREEDY)  # errors are ignored: the question reports them
    assert answerer.stage == "ready"
    await answerer.read_ahead([Message("user", draft)], GREEDY)
    ahead = (await ask(answerer, [Message("user", f"{draft} changed.")])).done.numbers
    assert ahead["prompt_tokens"] - ahead["cached_tokens"] < 12


async def test_localdflash_over_tcp_reports_all_fields(live: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(live.key)
    key.chmod(0o600)
    async with open_answerer(NamedServer(f"http://127.0.0.1:{live.port}/v1/", key)) as answerer:
        info = await answerer.ready()
        assert (info.pair, info.context, info.has_drafter) == ("embedded", 1024, True)
        answer = await ask(answerer)
        assert answer.text == content(server_answer(live))
        assert answer.done.numbers["drafted"] > 0
        assert await answerer.count(QUESTION, system="", settings=GREEDY) == answer.done.numbers["prompt_tokens"]
        for select in (answerer.check_model, answerer.load):
            with pytest.raises(ModelError, match="no model 'qwen'; it has embedded"):
                await select("qwen")
        assert (await answerer.load("embedded")).pair == "embedded"


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
STEP = {"drafter": "lookup", "drafted": 3, "accepted": 1, "sizes": [1, 1], "ms": 2.0, "tokens": ["a", "b"]}


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """Return the path of a socket."""
    home.mkdir()
    return home / "s"


async def test_unset_settings_use_the_model_recommendations(path: Path) -> None:
    script = ScriptedServer(*[answer("a")] * 2)
    script.status |= {"context": 4000, "sampling": {"temperature": 0.6, "top_k": 20, "top_p": 0.95}}
    async with serve_script(script, path) as source, open_answerer(source) as answerer:
        await ask(answerer, settings=ChatSettings())
        await ask(answerer, settings=ChatSettings(temperature=0.0, max_tokens=0))
    sampled, greedy = script.requests
    assert (sampled["temperature"], sampled["top_k"], sampled["top_p"]) == (0.6, 20, 0.95)
    assert isinstance(sampled["top_k"], int)  # the engine refuses a float
    assert (sampled["max_tokens"], sampled["end_repeats"]) == (1000, True)
    assert isinstance(sampled["seed"], int)
    assert greedy["temperature"] == 0.0
    assert "max_tokens" not in greedy


async def test_answer_resumes_after_the_engine_died(path: Path) -> None:
    cut = HEAD + b"".join(map(text, ["a", "bc"]))
    script = ScriptedServer(cut, cut[:-5], answer("ab", "cd"))
    async with serve_script(script, path) as source, open_answerer(source) as answerer:
        found = await ask(answerer, settings=ChatSettings(temperature=1.0))
    assert (found.text, found.done.finish) == ("abcd", "stop")
    assert AnswerRestart() not in found.events
    assert source.opened == 3
    first, second, third = script.requests
    assert first == second == third


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({"backend": "cuda", "gpu_check": "sound"}, "scripted runs on cuda from now on"),
        ({"gpu_check": "its check failed"}, "cpu runs scripted; no CUDA engine: its check failed"),
    ],
)
async def test_end_of_a_gpu_check_is_reported_before_the_next_answer(
    path: Path, after: dict[str, str], line: str
) -> None:
    script = ScriptedServer(*[answer("a")] * 4)
    script.status |= {"context": 4000, "backend": "cpu", "gpu_check": CHECKING_GPU}
    lines = list[str]()
    async with serve_script(script, path) as source, open_answerer(source, lines.append) as answerer:
        await ask(answerer)
        await ask(answerer)
        assert lines == []
        script.status |= after
        await ask(answerer)
        await ask(answerer)
    assert lines == [line]


@pytest.mark.parametrize(("code", "has_begun"), [("model_not_found", False), ("model_changed", True)])
async def test_unloaded_model_is_loaded_again(path: Path, code: str, has_begun: bool) -> None:
    error = {"error": {"message": "it is not loaded", "code": code}}
    refused = HEAD + text("a") + event(**error) + END if has_begun else response(404, error)

    script = ScriptedServer(answer("a"), refused, answer("ab"))
    async with serve_script(script, path) as source, open_answerer(source) as answerer:
        await ask(answerer)
        assert (await ask(answerer)).text == "ab"
        assert script.others[-1] == ("/load", {"pair": "scripted", "role": "chat", "others": "refuse"})
        assert [request["model"] for request in script.requests] == ["scripted", "scripted", "other"]


async def test_relative_path_of_a_model_is_sent_as_absolute_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    script = ScriptedServer()
    async with serve_script(script, path) as source, open_answerer(source) as answerer:
        await answerer.load("models/m.gguf")
    expected = str(path.parent / "models" / "m.gguf")
    assert script.others[-1] == ("/load", {"pair": expected, "role": "chat", "others": "refuse"})


async def test_model_is_checked_without_a_request_to_the_daemon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    async with open_answerer(FixedSource(path)) as answerer:  # no daemon runs
        await answerer.check_model("embedded")
        for pair, reason in (("embeded", "embedded"), ("m.gguf", str(path.parent / "m.gguf")), ("qwen3-4b", "pull")):
            with pytest.raises(ModelError, match=reason):
                await answerer.check_model(pair)


@pytest.mark.parametrize(
    "reply",
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
async def test_malformed_reply_raises_a_one_line_error(path: Path, reply: bytes) -> None:
    async with serve_script(ScriptedServer(*[reply] * 9), path) as source, open_answerer(source) as answerer:
        with pytest.raises(LocaldflashError) as caught:
            await ask(answerer)
        assert str(caught.value)
        assert "\n" not in str(caught.value)


MODELS = {"object": "list", "data": [{"id": "first", "owned_by": "somebody"}, {"id": "second"}]}
OPENAI = {"messages", "model", "temperature", "stream", "stream_options", "top_p", "max_tokens", "seed"}


@asynccontextmanager
async def open_remote(script: ScriptedServer, model: str = "", base: str = "/v1") -> AsyncIterator[Answerer]:
    async with await asyncio.start_server(script.handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_answerer(NamedServer(f"http://127.0.0.1:{port}{base}", None, model)) as answerer:
            yield answerer


async def test_remote_server_gets_only_openai_fields() -> None:
    script = ScriptedServer(*[answer("Hello")] * 3, models=MODELS)
    async with open_remote(script) as answerer:
        assert await answerer.ready() == ServerInfo("first")
        await answerer.read_ahead(QUESTION, ChatSettings())  # is not sent
        assert (await ask(answerer, settings=ChatSettings())).text == "Hello"
        everything = ChatSettings(1.0, 5, 0.9, 0.1, 1.5, 7, 99, thinking=False, draft=False)
        await ask(answerer, settings=everything, system="Be brief.", continue_last=True)
        assert await answerer.count(QUESTION, system="", settings=everything) is None
        await ask(answerer, settings=ChatSettings(temperature=1.0))
    minimal, complete, sampled = script.requests
    assert "seed" not in sampled
    assert {*minimal} == OPENAI - {"temperature", "top_p", "max_tokens", "seed"}  # left to the server
    assert {*complete} == OPENAI
    assert complete["messages"][0] == {"role": "system", "content": "Be brief."}
    assert complete["model"] == "first"
    assert "authorization" not in script.heads[0].lower()


async def test_remote_server_gets_no_thoughts() -> None:
    script = ScriptedServer(answer("x"), models=MODELS)
    messages = [Message("user", "one"), Message("assistant", "<think>\nwhy\n</think>\n\nso"), *QUESTION]
    async with open_remote(script) as answerer:
        async for _ in answerer.answer(messages, ChatSettings()):
            pass
    assert [message["content"] for message in script.requests[0]["messages"][:2]] == ["one", "so"]


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x"])
async def test_invalid_server_address_is_refused(url: str) -> None:
    async with open_answerer(NamedServer(url)) as answerer:
        with pytest.raises(UsageError, match="invalid server address"):
            await ask(answerer, [Message("user", "x")])
