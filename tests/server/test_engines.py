"""Several pairs in one daemon: roles, eviction, reloading."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from localdflash.base.errors import NoDevice, OutOfMemory
from localdflash.loading import proof
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import CHECKING_GPU
from localdflash.models.load_options import Options
from localdflash.server.api import control
from localdflash.server.api.metrics import Metrics
from localdflash.server.engine_spec import ROLES, PairRole
from localdflash.server.engines import UNUSED_SECONDS, Engines
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker
from tests.support.gguf_files import write_header

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PLACE = {"path": "a.py", "prefix": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 4, "stream": False}
LONG = {**HELLO, "max_tokens": 900, "temperature": 2.0, "grammar": "root ::= " + "[a-z] " * 2000}
LOADED = "localdflash.server.worker.LoadedPair"


class Daemon:
    """Client of engines and their app in this process."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(create_app(engines)), base_url="http://localhost", timeout=60
        )

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).json()

    async def post(self, path: str, body: Any) -> httpx2.Response:
        return await self.http.post(path, json=body)

    async def load(self, pair: str, role: str = "", **more: Any) -> httpx2.Response:
        return await self.post("/load", {"pair": pair, **({"role": role} if role else {}), **more})

    async def answered_by(self, path: str, body: Any) -> str:
        """Return the pair that answers a request, or the error code."""
        told = (await self.post(path, body)).json()
        return str(told["error"]["code"] if "error" in told else told["model"])

    async def pairs(self) -> dict[str, list[str]]:
        """Return the roles of each pair that /ps lists."""
        return {one["pair"]: one["roles"] for one in (await self.get("/ps"))["pairs"]}

    @asynccontextmanager
    async def answering(self, pair: str) -> AsyncIterator["asyncio.Task[httpx2.Response]"]:
        """Start a long answer of a pair; its client disconnects at the end."""
        task = asyncio.create_task(self.post(CHAT, {**LONG, "model": pair}))
        while not any(one.running and one.running.request.stats.steps for one in self._schedulers()):
            assert not task.done(), task.result().text
            await asyncio.sleep(0.005)
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            while any(one.running for one in self._schedulers()):
                await asyncio.sleep(0.005)

    async def until_somebody_waits(self) -> None:
        """Wait until a load waits for the requests of a pair that has to go."""
        while not self.engines._evicting:
            await asyncio.sleep(0.005)

    def _schedulers(self) -> list[Any]:
        return [worker.scheduler for worker in self.engines.workers if worker.scheduler]


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


@pytest.fixture
async def make(tiny: str) -> AsyncIterator[Callable[..., Any]]:
    """Create engines that start with the tiny pair for some roles."""
    made: list[Daemon] = []

    async def daemon(*roles: PairRole, **later: str) -> Daemon:
        first = PairWorker(Options(tiny, "llama.cpp", threads=1, context=1024), 8_000_000, 4, Metrics().observe)
        pairs = {role: Options(pair, "llama.cpp", threads=1) for role, pair in later.items()}
        made.append(Daemon(Engines(first, roles or ROLES, pairs)))  # type: ignore[arg-type]
        made[-1].engines.start()
        await first.ready()
        return made[-1]

    yield daemon
    for one in made:
        await one.http.aclose()
        await asyncio.to_thread(one.engines.close)


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


@pytest.fixture
async def checking(make: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Daemon, threading.Event]:
    """Start engines whose pair is being checked on a GPU; the event ends the check, which passes."""
    passed = threading.Event()
    subjects = iter([SimpleNamespace(why_not=lambda: "")])
    monkeypatch.setattr(proof, "find_unchecked_subject", lambda *_: next(subjects, None))
    monkeypatch.setattr(proof, "check", lambda *_: passed.wait())
    return await make(), passed


async def test_the_first_answer_does_not_wait_for_torch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the GPU is known, which takes an import of torch, the pair is checked; then it may turn out unfit."""
    imported = threading.Event()

    def identify(*_: Any) -> Any:
        imported.wait()
        raise NoDevice("torch is too old")

    monkeypatch.setattr(proof, "is_first_check", lambda _: True)
    monkeypatch.setattr(proof.Subject, "of", identify)
    daemon = await make()
    assert await daemon.answered_by(CHAT, HELLO)
    assert (await daemon.get("/ps"))["gpu_check"] == CHECKING_GPU
    imported.set()
    while (status := await daemon.get("/ps"))["gpu_check"]:
        await asyncio.sleep(0.005)
    assert "no CUDA engine: torch is too old" in status["notice"]


async def test_a_daemon_that_stops_before_torch_is_imported_starts_no_check(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check's child would be killed with the process, and count as a crash."""
    imported, identified = threading.Event(), threading.Event()
    checks = list[Any]()

    def identify(*_: Any) -> Any:
        imported.wait()
        identified.set()
        return SimpleNamespace(why_not=lambda: "")

    monkeypatch.setattr(proof, "is_first_check", lambda _: True)
    monkeypatch.setattr(proof.Subject, "of", identify)
    monkeypatch.setattr(proof, "check", lambda *given: checks.append(given))
    daemon = await make()
    thread = next(one for one in threading.enumerate() if one.name == "gpu check")
    await asyncio.to_thread(daemon.engines.close)
    imported.set()
    await asyncio.to_thread(thread.join)
    assert (identified.is_set(), checks) == (True, [])


async def until_passed(daemon: Daemon, passed: threading.Event) -> None:
    passed.set()
    while not daemon.engines.worker("chat").passed_check:  # type: ignore[union-attr]
        await asyncio.sleep(0.005)


async def test_a_pair_whose_gpu_check_passes_is_loaded_again_between_two_answers(checking: Any, tiny: str) -> None:
    daemon, passed = checking
    before = daemon.engines.worker("chat")
    status = await daemon.get("/ps")
    assert (status["gpu_check"], "until the CUDA engine is checked" in status["notice"]) == (CHECKING_GPU, True)
    async with daemon.answering(tiny):
        await until_passed(daemon, passed)
        assert await daemon.engines.switch_to_gpu() == []
    assert len(await daemon.engines.switch_to_gpu()) == 1
    assert daemon.engines.worker("chat") is daemon.engines.worker("completion") is not before
    assert await daemon.answered_by(CHAT, HELLO) == tiny
    assert await daemon.engines.switch_to_gpu() == []


async def test_a_checked_pair_that_fails_to_load_again_is_loaded_by_the_next_request(
    checking: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, passed = checking
    await until_passed(daemon, passed)
    with monkeypatch.context() as patch:
        patch.setattr(LOADED, lambda options: has_no_memory())
        with pytest.raises(OutOfMemory):
            await daemon.engines.switch_to_gpu()
    assert await daemon.answered_by(CHAT, HELLO) == tiny
    assert await daemon.answered_by("/complete", PLACE) == tiny


def has_no_memory() -> LoadedPair:
    raise OutOfMemory("9.00 GB are needed, 1.00 GB of memory are free")
