"""A pair for the chat and one for completions in one daemon: who answers what, who gives way, what stays."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from localdflash.base.errors import OutOfMemory
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import UNUSED, Engines
from localdflash.server.http_app import create_app
from localdflash.server.wanted import ROLES, PairRole
from localdflash.server.worker import PairWorker
from tests.support.gguf_files import write_header
from tests.support.served import Client

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PLACE = {"path": "a.py", "prefix": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 4, "stream": False}
LONG = {**HELLO, "max_tokens": 900, "temperature": 2.0, "grammar": "root ::= " + "[a-z] " * 2000}
LOADED = "localdflash.server.worker.LoadedPair"


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


@pytest.fixture
def make(tiny: str) -> Iterator[Callable[..., tuple[Engines, Client]]]:
    """Engines that start with the tiny pair for some roles, and a client of their app."""
    made: list[Engines] = []

    def engines(*roles: PairRole, **later: str) -> tuple[Engines, Client]:
        first = PairWorker(Options(tiny, "llama.cpp", threads=1, context=1024), 8_000_000, 4, Metrics().observe)
        pairs = {role: Options(pair, "llama.cpp", threads=1) for role, pair in later.items()}
        made.append(Engines(first, roles or ROLES, pairs))  # type: ignore[arg-type]
        made[-1].start()
        asyncio.run(first.ready())
        return made[-1], Client(create_app(made[-1]), {})

    yield engines
    for one in made:
        one.close()


@pytest.fixture
def without_fim(tmp_path: Path) -> str:
    """The header of a model that no one trained to fill in the middle."""
    return str(write_header(tmp_path / "talks.gguf", "a", "b", "<|im_start|>"))


def fails_beside_another(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine whose memory holds one pair; the pairs that were tried."""
    tried: list[str] = []
    held: weakref.WeakSet[LoadedPair] = weakref.WeakSet()

    def load(options: Options) -> LoadedPair:
        tried.append(options.pair)
        gc.collect()
        if held:
            raise OutOfMemory("a context of 1024 tokens needs 9.00 GB, 1.00 GB of memory are free")
        loaded = LoadedPair(options)
        held.add(loaded)
        return loaded

    monkeypatch.setattr(LOADED, load)
    return tried


def pairs(client: Client) -> dict[str, list[str]]:
    """What /ps lists: for each pair its roles."""
    return {one["pair"]: one["roles"] for one in client.get("/ps").json()["pairs"]}


def test_a_pair_for_the_chat_leaves_that_of_completions_alone(make: Any, tiny: str) -> None:
    engines, client = make("completion")
    before = engines.worker("completion").loaded
    told = client.post("/load", {"pair": "embedded", "role": "chat"})
    assert (told.status_code, told.json()["pair"]) == (200, "embedded")
    assert pairs(client) == {"embedded": ["chat"], tiny: ["completion"]}
    assert client.post("/v1/chat/completions", HELLO).json()["model"] == "embedded"
    assert client.post("/complete", PLACE).status_code == 200
    assert engines.worker("completion").loaded is before
    by_role = [client.get(f"/ps?role={role}").json()["pair"] for role in ROLES]
    assert by_role == ["embedded", tiny]
    assert client.get("/ps?role=editor").status_code == 400
    listed = [one["id"] for one in client.get("/v1/models").json()["data"]]
    assert listed == ["embedded", tiny]


def test_another_drafter_is_that_of_its_pair_alone(make: Any, tiny: str, tmp_path: Path) -> None:
    _, client = make()
    assert client.get("/ps").json()["drafters"] == ["lookup", "dflash"]
    small = tmp_path / "small.gguf"
    small.write_bytes(Path(tiny).read_bytes())
    told = client.post("/load", {"pair": tiny, "drafter": str(small)})
    assert (told.status_code, told.json()["drafters"]) == (200, ["lookup", "draft-model"])
    assert client.post("/load", {"pair": tiny, "context": 512}).json()["drafters"] == ["lookup", "draft-model"]
    assert client.post("/load", {"pair": "embedded"}).json()["drafters"] == ["lookup", "dflash"]


def test_requests_name_either_pair(make: Any, tiny: str) -> None:
    _, client = make("completion")
    client.post("/load", {"pair": "embedded", "role": "chat"})
    for name in ("embedded", tiny):
        told = client.post("/v1/completions", {"prompt": "def", "max_tokens": 2, "model": name})
        assert (told.status_code, told.json()["model"]) == (200, name)
    assert client.post("/v1/completions", {"prompt": "def", "max_tokens": 2}).json()["model"] == tiny
    assert client.post("/v1/chat/completions", {**HELLO, "model": "another"}).status_code == 404


def test_both_roles_share_an_engine_that_both_name(make: Any, tiny: str) -> None:
    engines, client = make()
    assert len(engines.workers) == 1
    assert client.post("/load", {"pair": "embedded", "role": "chat"}).status_code == 200
    assert pairs(client) == {"embedded": ["chat"], tiny: ["completion"]}
    assert client.post("/load", {"pair": tiny, "role": "chat"}).status_code == 200
    assert pairs(client) == {tiny: ["chat", "completion"], "embedded": []}
    assert engines.worker("chat") is engines.worker("completion")
    assert client.post("/load", {"pair": "embedded"}).status_code == 200, "for everything"
    assert pairs(client) == {"embedded": ["chat", "completion"]}


def test_a_chat_whose_pair_is_not_there_is_not_answered_by_another(make: Any) -> None:
    _, client = make("completion")
    told = client.post("/v1/chat/completions", HELLO)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "model_not_loaded")
    assert "no pair is loaded for the chat" in told.json()["error"]["message"]
    assert client.post("/complete", PLACE).status_code == 200


def test_a_pair_is_loaded_when_its_role_is_first_asked_for(make: Any, tiny: str) -> None:
    _, client = make("completion", chat="embedded")
    assert pairs(client) == {tiny: ["completion"]}
    assert client.post("/v1/chat/completions", HELLO).json()["model"] == "embedded"
    assert pairs(client) == {"embedded": ["chat"], tiny: ["completion"]}


def test_what_does_not_fit_beside_the_pair_of_completions_is_one_line(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_beside_another(monkeypatch)
    engines, client = make("completion", chat="embedded")
    told = client.post("/load", {"pair": "embedded", "role": "chat"})
    assert (told.status_code, told.json()["error"]["code"]) == (503, "out_of_memory")
    message = told.json()["error"]["message"]
    assert message.startswith(f"embedded, the pair of the chat, does not fit beside {tiny}, the pair of completions: ")
    assert "9.00 GB" in message
    asked = client.post("/v1/chat/completions", HELLO)
    assert asked.status_code == 503
    assert "does not fit beside" in asked.json()["error"]["message"]
    assert pairs(client) == {tiny: ["completion"]}
    assert client.post("/complete", PLACE).status_code == 200
    assert engines.error is None


def test_the_pair_of_completions_takes_the_room_of_the_chats(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fails_beside_another(monkeypatch)
    _, client = make("chat", completion="embedded")
    told = client.post("/load", {"pair": "embedded", "role": "completion"})
    assert told.status_code == 200, told.text
    assert tried == [tiny, "embedded", "embedded"]
    assert pairs(client) == {"embedded": ["completion"]}
    asked = client.post("/v1/chat/completions", HELLO)
    assert (asked.status_code, asked.json()["error"]["code"]) == (503, "model_not_loaded")
    assert client.post("/complete", PLACE).status_code == 200


def test_a_pair_of_completions_that_nobody_has_used_in_a_while_makes_room_for_the_chats(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is larger; it comes back with the next completion, and the chat's leaves."""
    fails_beside_another(monkeypatch)
    engines, client = make("completion", chat="embedded")
    monkeypatch.setattr(engines.worker("completion"), "completed", time.monotonic() - UNUSED + 60)
    assert "does not fit beside" in client.post("/v1/chat/completions", HELLO).json()["error"]["message"]
    monkeypatch.setattr(engines.worker("completion"), "completed", time.monotonic() - UNUSED - 1)
    assert client.post("/complete", PLACE).status_code == 200
    assert client.post("/v1/chat/completions", HELLO).status_code == 503, "it was used just now"
    monkeypatch.setattr(engines.worker("completion"), "completed", time.monotonic() - UNUSED - 1)
    assert client.post("/v1/chat/completions", HELLO).json()["model"] == "embedded"
    assert pairs(client) == {"embedded": ["chat"]}
    assert client.post("/complete", PLACE).status_code == 200
    assert pairs(client) == {tiny: ["completion"]}


def test_the_chats_pair_answers_no_prompt_that_is_the_completions(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_beside_another(monkeypatch)
    engines, client = make("completion", chat="embedded")
    monkeypatch.setattr(engines.worker("completion"), "completed", time.monotonic() - UNUSED - 1)
    assert client.post("/v1/chat/completions", HELLO).status_code == 200
    assert client.post("/v1/completions", {"prompt": "def", "max_tokens": 2}).json()["model"] == tiny
    assert pairs(client) == {tiny: ["completion"]}


def test_a_pair_for_everything_steps_aside_for_one_of_completions_alone(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the chat's alone by then."""
    fails_beside_another(monkeypatch)
    engines, client = make()
    assert client.post("/complete", PLACE).status_code == 200
    told = client.post("/load", {"pair": "embedded", "role": "completion"})
    assert told.status_code == 200, told.text
    assert pairs(client) == {"embedded": ["completion"]}
    assert "does not fit beside embedded" in client.post("/v1/chat/completions", HELLO).json()["error"]["message"]
    assert engines.continuing == "completion"


def test_a_model_that_cannot_fill_in_is_refused_before_it_is_loaded(
    make: Any, tiny: str, without_fim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, client = make()
    before = engines.worker("completion").loaded
    monkeypatch.setattr(LOADED, lambda options: pytest.fail(f"{options.pair} was loaded"))
    told = client.post("/load", {"pair": without_fim, "role": "completion"})
    assert (told.status_code, told.json()["error"]["code"]) == (400, "unsupported_by_model")
    assert "no fill-in-the-middle tokens" in told.json()["error"]["message"]
    assert engines.worker("completion").loaded is before
    assert pairs(client) == {tiny: ["chat", "completion"]}


def test_a_pair_for_everything_that_cannot_fill_in_leaves_completions_theirs(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = make()
    monkeypatch.setattr("localdflash.server.engines.fills", lambda pair: pair == tiny)
    assert client.post("/load", {"pair": "embedded"}).status_code == 200
    assert pairs(client) == {"embedded": ["chat"], tiny: []}
    assert client.post("/complete", PLACE).status_code == 200
    assert pairs(client) == {"embedded": ["chat"], tiny: ["completion"]}


def test_a_load_beside_another_pair_that_fails_changes_nothing(make: Any, tiny: str, tmp_path: Path) -> None:
    engines, client = make()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    for role in ROLES:
        assert client.post("/load", {"pair": str(broken), "role": role}).status_code == 400
    assert pairs(client) == {tiny: ["chat", "completion"]}
    assert client.post("/v1/chat/completions", HELLO).status_code == 200
    assert engines.error is None


def test_what_is_there_is_not_loaded_again(make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(options: Options) -> LoadedPair:
        loaded.append(options.pair)
        return LoadedPair(options)

    monkeypatch.setattr(LOADED, load)
    _, client = make("completion")
    body = {"pair": "embedded", "role": "chat"}

    async def together() -> set[int]:
        transport = httpx2.ASGITransport(client.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x", timeout=60) as http:
            return {told.status_code for told in await asyncio.gather(*(http.post("/load", json=body) for _ in "four"))}

    assert asyncio.run(together()) == {200}
    assert client.post("/load", body).status_code == 200
    assert loaded == [tiny, "embedded"]


def test_a_pair_that_would_be_cramped_takes_the_room_of_one_that_nobody_uses(
    make: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = make("chat")
    tried: list[bool] = []

    def load(options: Options) -> LoadedPair:
        tried.append(options.roomy)
        if options.roomy:
            raise OutOfMemory("a context of 8192 tokens needs 9.00 GB")
        return LoadedPair(options)

    monkeypatch.setattr(LOADED, load)
    assert client.post("/load", {"pair": "embedded", "role": "chat"}).status_code == 200
    assert tried == [True, False]
    assert pairs(client) == {"embedded": ["chat"]}


def test_completions_go_on_while_a_chat_answers(make: Any) -> None:
    engines, client = make("completion", chat="embedded")
    assert client.post("/v1/chat/completions", HELLO).status_code == 200
    chat = engines.worker("chat")
    with ThreadPoolExecutor() as pool:
        talk = pool.submit(client.post, "/v1/chat/completions", LONG)
        while not (chat.scheduler.running and chat.scheduler.running.request.stats.steps):
            assert not talk.done(), talk.result().text
        for _ in range(5):
            assert client.post("/complete", PLACE).status_code == 200
        assert not talk.done(), "it was over too early to show anything"
        engines.close()
        assert talk.result().json()["error"]["code"] == "engine_stopped"


def test_both_pairs_are_counted(make: Any) -> None:
    _, client = make("completion", chat="embedded")
    assert client.post("/v1/chat/completions", HELLO).status_code == 200
    assert client.post("/complete", PLACE).status_code == 200
    scraped = client.get("/metrics").text.splitlines()
    assert "localdflash_model_loaded 2.0" in scraped
    assert "localdflash_requests_total 2.0" in scraped
    told = client.get("/ps").json()
    assert told["requests"] == 2
    assert [one["requests"] for one in told["pairs"]] == [1, 1]
    parts = [one["memory"] for one in told["pairs"]]
    own = sum(size for memory in parts for name, size in memory.items() if name != "program")
    resident = psutil.Process().memory_info().rss
    for memory in parts:
        assert memory["program"] + own == pytest.approx(resident, rel=0.1), "no pair's memory counts as the program's"


def test_an_engine_that_nobody_uses_is_unloaded_and_holds_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engines, client = make()
    assert client.post("/load", {"pair": "embedded", "role": "chat"}).status_code == 200
    chat = weakref.ref(engines.worker("chat").loaded.pair)
    tiny = engines.worker("completion").options.pair
    assert client.post("/load", {"pair": tiny, "role": "chat"}).status_code == 200
    asyncio.run(engines.free_unused())
    assert set(pairs(client)) == {tiny, "embedded"}, "a chat may still name it"
    monkeypatch.setattr("localdflash.server.engines.UNUSED", 0.0)
    asyncio.run(engines.free_unused())
    assert pairs(client) == {tiny: ["chat", "completion"]}
    gc.collect()
    assert chat() is None
