"""Several pairs in one daemon: roles, eviction, reloading."""

import asyncio
import gc
import time
import weakref
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.base.errors import OutOfMemory
from localdflash.engine.generate import Request
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.activity import Activity
from localdflash.server.api import control
from localdflash.server.api.api_state import AppState
from localdflash.server.api.generation import GenerationRequest, pieces
from localdflash.server.api.metrics import Metrics
from localdflash.server.engine_spec import ROLES
from localdflash.server.engines import UNUSED_SECONDS
from tests.support.engine_daemon import CHAT, HELLO, LOADED, LONG, PLACE
from tests.support.gguf_files import write_header


def has_room_for(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """Limit the number of pairs that fit into memory; return the list of tried loads."""
    tried, held = list[str](), set[int]()

    class Counted(LoadedPair):
        def __init__(self, options: Options) -> None:
            tried.append(options.pair)
            if len(held) >= count:
                raise OutOfMemory("a context of 1024 tokens needs 9.00 GB, 1.00 GB of memory are free")
            super().__init__(options)
            held.add(id(self))

        def close(self) -> None:
            held.discard(id(self))
            super().close()

    monkeypatch.setattr(LOADED, Counted)
    return tried


async def test_a_chat_pair_keeps_the_completion_pair(make: Any, tiny: str) -> None:
    daemon = await make("completion")
    assert await daemon.answered_by(CHAT, HELLO) == "model_not_loaded", "no other answers for it"
    before = daemon.engines.worker("completion").loaded
    told = await daemon.load("embedded", "chat")
    assert (told.status_code, told.json()["pair"]) == (200, "embedded")
    assert await daemon.pairs() == {"embedded": ["chat"], tiny: ["completion"]}
    assert await daemon.answered_by(CHAT, HELLO) == "embedded"
    assert await daemon.answered_by("/complete", PLACE) == tiny
    assert daemon.engines.worker("completion").loaded is before
    assert [(await daemon.get(f"/ps?role={role}"))["pair"] for role in ROLES] == ["embedded", tiny]
    assert (await daemon.http.get("/ps?role=editor")).status_code == 400
    assert [one["id"] for one in (await daemon.get("/v1/models"))["data"]] == ["embedded", tiny]
    for name in ("embedded", tiny):
        assert await daemon.answered_by("/v1/completions", {"prompt": "def", "max_tokens": 2, "model": name}) == name
    assert await daemon.answered_by("/v1/completions", {"prompt": "def", "max_tokens": 2}) == tiny
    assert await daemon.answered_by(CHAT, {**HELLO, "model": "another"}) == "embedded"


async def test_models_are_loaded_and_unloaded_by_name(make: Any, tiny: str) -> None:
    """As llama-server's router does it: a pair is loaded next to the others, or takes the role back that it had."""
    daemon = await make()

    async def states() -> dict[str, str]:
        return {one["id"]: one["status"]["value"] for one in (await daemon.get("/models"))["data"]}

    async def told(path: str, model: str) -> tuple[int, Any]:
        response = await daemon.post(path, {"model": model})
        return response.status_code, response.json().get("error", {}).get("message", response.json())

    success = 200, {"success": True}
    assert next(iter((await states()).items())) == (tiny, "loaded")
    assert (await states())["embedded"] == "unloaded"
    assert await told("/models/load", "embedded") == success
    assert await daemon.pairs() == {"embedded": ["chat"], tiny: ["completion"]}
    assert await told("/models/load", "embedded") == (400, "model: 'embedded' is already loaded")
    assert await told("/models/unload", tiny) == success
    assert await told("/models/unload", tiny) == (400, f"model: {tiny!r} is not loaded")
    assert [await states(), await daemon.pairs()] == [{"embedded": "loaded", tiny: "unloaded"}, {"embedded": ["chat"]}]
    assert await told("/models/load", tiny) == success
    assert await daemon.pairs() == {"embedded": ["chat"], tiny: ["completion"]}
    for name in ("embedded", tiny):
        assert await told("/models/unload", name) == success
    assert set((await states()).values()) == {"unloaded"}
    assert (await daemon.http.get("/health")).status_code == 200
    assert await daemon.pairs() == {}, "nothing was loaded by looking"
    assert await daemon.answered_by(CHAT, HELLO) == "embedded"
    for name in ("qwen3-8b", "/etc/passwd", "nothing"):
        status, message = await told("/models/load", name)
        assert (status, message.partition("; ")[0]) == (404, f"GET /models does not list {name!r}")


async def test_a_pair_of_both_roles_is_loaded_again_for_both(make: Any, tiny: str) -> None:
    daemon = await make()
    worker = daemon.engines.worker("chat")
    async with daemon.answering(tiny):
        unloading = asyncio.create_task(daemon.post("/models/unload", {"model": tiny}))
        await daemon.until_somebody_waits()
        assert not unloading.done()
        assert worker.loaded
    assert (await unloading).json() == {"success": True}
    assert not daemon.engines.workers
    assert (await daemon.post("/models/load", {"model": tiny})).json() == {"success": True}
    assert await daemon.pairs() == {tiny: ["chat", "completion"]}


async def test_events_of_new_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair that stops loading without being loaded failed."""
    loading, loaded, unloaded = ({"a": state} for state in ("loading", "loaded", "unloaded"))
    states = iter([{}, loading, loading, loaded, {}, loading, unloaded, {}])
    monkeypatch.setattr(control, "_states", lambda _: next(states))
    monkeypatch.setattr(control, "EVENT_SECONDS", 0.0)
    daemon: Any = SimpleNamespace(engines=None, is_stopping=False)
    told = []
    async for event in control._state_events(daemon):
        told.append(event)
        daemon.is_stopping = len(told) == 5
    assert {(one["model"], one["event"]) for one in told} == {("a", "model_status")}
    ends = {"status": "unloaded", "exit_code": 0}, {"status": "unloaded", "exit_code": 1}
    assert [one["data"] for one in told] == [
        {"status": "loading"},
        {"status": "loaded"},
        ends[0],
        {"status": "loading"},
        ends[1],
    ]


async def test_a_model_that_cannot_fill_in(
    make: Any, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The completion role refuses the model before loading; both roles together keep the completion pair."""
    talks = str(write_header(tmp_path / "talks.gguf", "a", "b", "<|im_start|>"))
    daemon = await make()
    before = daemon.engines.worker("completion").loaded
    with monkeypatch.context() as patch:
        patch.setattr(LOADED, lambda options: pytest.fail(f"{options.pair} was loaded"))
        told = await daemon.load(talks, "completion")
    assert (told.status_code, told.json()["error"]["code"]) == (400, "unsupported_by_model")
    assert "no fill-in-the-middle tokens" in told.json()["error"]["message"]
    assert daemon.engines.worker("completion").loaded is before
    monkeypatch.setattr("localdflash.server.engines.supports_completion", lambda pair: pair == tiny)
    assert (await daemon.load("embedded")).status_code == 200
    assert await daemon.answered_by("/complete", PLACE) == tiny
    assert await daemon.pairs() == {"embedded": ["chat"], tiny: ["completion"]}


async def test_a_chat_pair_that_does_not_fit_is_one_line(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_room_for(monkeypatch, 1)
    daemon = await make("completion", chat="embedded")
    told = await daemon.load("embedded", "chat")
    assert (told.status_code, told.json()["error"]["code"]) == (503, "out_of_memory")
    message = told.json()["error"]["message"]
    assert message.startswith(f"the chat pair embedded does not fit next to the completion pair {tiny}: ")
    assert "9.00 GB" in message
    assert "does not fit next to" in (await daemon.post(CHAT, HELLO)).text
    assert await daemon.pairs() == {tiny: ["completion"]}
    assert daemon.engines.error is None


async def test_a_completion_pair_evicts_the_chat_pair(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of both roles counts as the chat's once the completion role has its own."""
    tried = has_room_for(monkeypatch, 1)
    daemon = await make()
    assert (await daemon.load("embedded", "completion")).status_code == 200
    assert tried == [tiny, "embedded", "embedded"]
    assert await daemon.pairs() == {"embedded": ["completion"]}
    assert await daemon.answered_by(CHAT, HELLO) == "model_not_loaded"
    assert await daemon.answered_by("/complete", PLACE) == "embedded"
    assert daemon.engines.raw_prompt_role == "completion"


async def test_an_idle_completion_pair_is_evicted_for_the_chat_pair(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next completion loads the completion pair again and evicts the chat pair."""
    has_room_for(monkeypatch, 1)
    daemon = await make("completion", chat="embedded")
    worker = daemon.engines.worker("completion")
    worker.last_completion = time.monotonic() - UNUSED_SECONDS + 60
    assert await daemon.answered_by(CHAT, HELLO) == "model_not_loaded"
    worker.last_completion = time.monotonic() - UNUSED_SECONDS - 1
    assert await daemon.answered_by("/complete", PLACE) == tiny
    assert await daemon.answered_by(CHAT, HELLO) == "model_not_loaded", "it was used just now"
    worker.last_completion = time.monotonic() - UNUSED_SECONDS - 1
    assert await daemon.answered_by(CHAT, HELLO) == "embedded"
    assert await daemon.pairs() == {"embedded": ["chat"]}
    assert await daemon.answered_by("/v1/completions", {"prompt": "def", "max_tokens": 2}) == tiny
    assert await daemon.pairs() == {tiny: ["completion"]}


@pytest.mark.usefixtures("slow")
async def test_a_pair_that_is_answering_is_not_evicted(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of a load can end that answer or wait for it; a prefill without an answer does not count."""
    has_room_for(monkeypatch, 1)
    daemon = await make("chat")
    async with daemon.answering(tiny):
        told = await daemon.load("embedded", "chat", others="refuse")
        assert (told.status_code, told.json()["error"]["code"]) == (409, "model_busy")
        assert told.json()["error"]["message"] == "target.gguf is answering in another chat"
        assert await daemon.pairs() == {tiny: ["chat"]}
    async with daemon.answering(tiny) as answer:
        told = await daemon.load("embedded", "chat", others="end")
        assert told.status_code == 200, told.text
        told = (await answer).json()["error"]
        assert (told["code"], told["message"]) == ("model_taken", "target.gguf was unloaded for another chat's model")
    long = {"messages": [{"role": "user", "content": "word " * 700}], "max_tokens": 0}
    reading = asyncio.create_task(daemon.post(CHAT, long))
    await asyncio.sleep(0.02)
    assert (await daemon.load(tiny, "chat", others="refuse")).json()["pair"] == tiny
    await reading


@pytest.mark.usefixtures("slow")
async def test_a_switch_waits_for_the_answer_under_way(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_room_for(monkeypatch, 1)
    daemon = await make("chat")
    async with daemon.answering(tiny) as answer:
        loading = asyncio.create_task(daemon.load("embedded", "chat"))
        await daemon.until_somebody_waits()
        later = asyncio.create_task(daemon.post(CHAT, HELLO))
        told = await daemon.load(tiny, "chat", context=512, others="refuse")
        assert told.json()["error"]["message"] == "target.gguf is answering, and another chat is waiting to replace it"
        assert [task.result().text for task in (loading, later, answer) if task.done()] == []
    assert (await loading).json()["pair"] == "embedded"
    assert (await later).json()["model"] == "embedded", "it came after the switch, and named nobody"
    assert await daemon.answered_by(CHAT, {**HELLO, "model": tiny}) == "model_not_found"


@pytest.mark.usefixtures("slow")
async def test_an_unload_waits_for_every_choice(make: Any, tiny: str) -> None:
    daemon = await make()
    body = {**HELLO, "n": 3, "max_tokens": 20, "temperature": 2.0, "grammar": LONG["grammar"]}
    answer = asyncio.create_task(daemon.post(CHAT, body))
    while not daemon.engines.worker("chat").is_busy:
        await asyncio.sleep(0.005)
    unloading = asyncio.create_task(daemon.post("/models/unload", {"model": tiny}))
    await daemon.until_somebody_waits()
    assert len((await answer).json()["choices"]) == 3
    assert (await unloading).json() == {"success": True}


async def test_an_unload_does_not_wait_for_a_client_that_stopped_reading(make: Any) -> None:
    engines = (await make()).engines
    state = AppState(engines, Metrics(), Activity(Metrics()))
    worker, loaded = engines.worker("chat"), await engines.ready("chat")
    ids = loaded.tokenizer.encode("x")
    requests = [Request(ids, 2), Request(ids, 2)]
    async with aclosing(pieces(state, GenerationRequest(loaded, requests))) as source:
        await anext(source)
        async with asyncio.timeout(10):
            await worker.wait_idle()


async def test_an_unload_waits_while_a_request_is_prepared(make: Any) -> None:
    engines = (await make()).engines
    state = AppState(engines, Metrics(), Activity(Metrics()))
    worker, loaded = engines.worker("chat"), await engines.ready("chat")
    assert await state.prepare(loaded, lambda: worker.is_busy)
    assert not worker.is_busy


async def test_a_ready_pair_is_loaded_whenever_an_unload_begins(make: Any) -> None:
    engines = (await make()).engines

    async def is_loaded() -> bool:
        return engines.worker_of(await engines.ready("chat")) is not None

    for turns in range(-9, 9):  # turns of the event loop from the request to the unload
        assert await is_loaded()
        both: list[Coroutine[Any, Any, Any]] = [is_loaded(), engines.unload(engines.worker("chat"))]
        first, second = both if turns >= 0 else both[::-1]
        began = asyncio.create_task(first)
        for _ in range(abs(turns)):
            await asyncio.sleep(0)
        assert False not in await asyncio.gather(began, second)


async def test_a_client_that_disconnects_while_waiting_switches_nothing(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_room_for(monkeypatch, 1)
    daemon = await make("chat")
    async with daemon.answering(tiny):
        dying = asyncio.create_task(daemon.load("embedded", "chat"))
        await daemon.until_somebody_waits()
        dying.cancel()
        with suppress(asyncio.CancelledError):
            await dying
        later = asyncio.create_task(daemon.post(CHAT, {**HELLO, "model": tiny}))
    assert (await later).json()["model"] == tiny
    assert await daemon.pairs() == {tiny: ["chat"]}


async def test_an_unused_pair_is_unloaded_and_freed(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = await make()
    await daemon.load("embedded", "chat")
    chat = weakref.ref(daemon.engines.worker("chat").loaded.pair)
    await daemon.load(tiny, "chat")
    await daemon.engines.free_unused()
    assert set(await daemon.pairs()) == {tiny, "embedded"}, "a chat may still name it"
    monkeypatch.setattr("localdflash.server.engines.UNUSED_SECONDS", 0.0)
    await daemon.engines.free_unused()
    assert await daemon.pairs() == {tiny: ["chat", "completion"]}
    gc.collect()
    assert chat() is None
