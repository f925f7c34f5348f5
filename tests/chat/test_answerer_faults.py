"""Scripted servers that die at any point, send nonsense, or send nothing."""

import asyncio
import time
from pathlib import Path

import pytest

from localdflash.base.errors import (
    ContextOverflow,
    EngineGone,
    LocaldflashError,
    OutOfMemory,
    QueueFull,
)
from localdflash.chat.answerer import Restarted
from localdflash.chat.sampling_settings import ChatSettings
from tests.chat.asking import (
    END,
    HEAD,
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


# What is read


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


# Where it goes away


async def test_an_answer_goes_on_where_the_engine_died(path: Path) -> None:
    told = ["a", "bc"]
    cut = HEAD + b"".join(map(text, told))
    script = Script(cut, cut[:-5], answer("ab", "cd"))
    async with scripted(script, path) as source, asking(source) as answerer:
        found = await ask(answerer, settings=ChatSettings(temperature=1.0))
    assert (found.text, found.done.finish) == ("abcd", "stop")
    assert Restarted() not in found.events
    assert source.opened == 3
    first, second, third = script.asked
    assert first == second == third


async def test_an_engine_that_dies_again_and_again_is_given_up(path: Path) -> None:
    cut = HEAD + text("a") + text("b")[:-9]
    stages: list[str] = []
    async with scripted(Script(*[cut] * 3), path) as source, asking(source) as answerer:
        answerer.on_stage = stages.append
        found = await ask(answerer)
        assert answerer.stage == "gone"
    assert (found.text, found.done.finish) == ("a", "gone")
    assert isinstance(found.done.error, EngineGone)
    assert found.done.numbers["model"] == "scripted"
    assert source.opened == 3
    assert stages == ["starting", "ready", "gone"] * 3


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


# What it refuses


@pytest.mark.parametrize(
    ("status", "code", "kind", "begun"),
    [
        (400, "context_length_exceeded", ContextOverflow, False),
        (503, "queue_full", QueueFull, False),
        (503, "out_of_memory", OutOfMemory, True),
    ],
)
async def test_errors_have_their_kind(path: Path, status: int, code: str, kind: type[Exception], begun: bool) -> None:
    error = {"message": "what, where", "type": "x", "param": None, "code": code}
    said = HEAD + text("a") + event(error=error) + END if begun else plain(status, {"error": error})
    async with scripted(Script(said, answer("fine")), path) as source, asking(source) as answerer:
        with pytest.raises(kind, match="what, where") as caught:
            await ask(answerer)
        assert type(caught.value) is kind
        assert (await ask(answerer)).text == "fine"
        assert source.opened == 1


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


# Where it says nothing


async def test_a_cancelled_request_closes_its_connection_at_once(path: Path) -> None:
    said = HEAD + text("a")
    script = Script([said, asyncio.Event()])
    async with scripted(script, path) as source, asking(source) as answerer:
        running = asyncio.create_task(ask(answerer))
        while not script.asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.wait_for(script.left.wait(), 5)
        assert time.perf_counter() - began < 2
