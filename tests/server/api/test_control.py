import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from localdflash.base.errors import OutOfMemory
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.scheduler import Scheduler
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.answers.completion import prepare_text
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.spawn import loading
from localdflash.server.worker import PairWorker

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


def scraped(client: Any) -> dict[tuple[str, ...], float]:
    """Every sample by name and label values."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_models(client: Any) -> None:
    told = client.get("/v1/models").json()
    assert told["object"] == "list"
    (model,) = told["data"]
    assert model == client.get("/v1/models/embedded").json()
    assert {"id", "object", "created", "owned_by", "meta"} == set(model)
    assert model["meta"]["n_ctx"] == 1024
    assert (model["meta"]["backend"], model["meta"]["drafter"]) == ("llama.cpp", True)
    assert client.get("/v1/models/nothing").status_code == 404


def test_the_prefix_cache_is_not_the_program(client: Any) -> None:
    """What an earlier prompt left is a part of the memory by itself."""
    for text in ("first " * 200, "another " * 200):
        message = {"role": "user", "content": text}
        assert client.post(CHAT, {"messages": [message], "max_tokens": 2}).status_code == 200
    told = client.get("/ps").json()
    held = scraped(client)[("localdflash_prefix_cache_bytes",)]
    assert told["memory"]["prefix cache"] == held > 0
    assert sum(told["memory"].values()) == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert "prefix cache" not in told["predicted"]


def test_props_are_those_that_llama_vscode_reads(client: Any) -> None:
    told = client.get("/props").json()
    assert told["default_generation_settings"]["n_ctx"] == 1024
    assert "<|im_start|>" in told["chat_template"]
    assert "/" not in told["model_path"]


def test_what_runs(client: Any) -> None:
    told = client.get("/ps").json()
    assert (told["pair"], told["context"], told["backend"]) == ("embedded", 1024, "llama.cpp")
    assert (told["running"], told["waiting"]) == (0, 0)
    assert told["since"] > 1e9
    before = told["requests"]
    client.post(CHAT, HELLO)
    assert client.get("/ps").json()["requests"] == before + 1


def test_metrics_count_what_happens(client: Any) -> None:
    before = scraped(client)
    told = client.post(CHAT, HELLO).json()
    client.get("/nothing")
    client.post(CHAT, {})
    after = scraped(client)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0.0)

    timings = told["timings"]
    assert grown("localdflash_http_requests_total", CHAT, "200") == 1
    assert grown("localdflash_http_requests_total", CHAT, "400") == 1
    assert grown("localdflash_http_requests_total", "other", "404") == 1
    assert grown("localdflash_requests_total") == 1
    assert grown("localdflash_tokens_total") == told["usage"]["completion_tokens"]
    assert grown("localdflash_steps_total") == grown("localdflash_verify_seconds_count") == timings["steps"]
    assert grown("localdflash_first_token_seconds_count") == 1
    assert grown("localdflash_prompt_tokens_total") == told["usage"]["prompt_tokens"]
    drafted = [name for name in after if name[0] == "localdflash_drafted_total"]
    assert sum(after[name] - before.get(name, 0.0) for name in drafted) == timings["draft_n"]
    assert 1 <= after["localdflash_tokens_per_step",] < 16
    assert after["localdflash_process_resident_bytes",] > 10_000_000
    assert after["localdflash_queue_length",] == 0
    assert all(math.isfinite(value) for value in after.values())


def test_there_is_no_stopping_what_was_not_made_to_be_stopped(client: Any) -> None:
    assert client.post("/stop", {}).status_code == 404


def test_stopping(worker: PairWorker, client_of: Any) -> None:
    stopped: list[bool] = []
    client = client_of(create_app(Engines(worker), stop=lambda: stopped.append(True)))
    assert client("GET", "/stop").status_code == 405
    assert client.post("/stop", {}).status_code == 200
    assert stopped == [True]


@pytest.fixture
def small(tiny_pair: Path) -> Iterator[Starlette]:
    options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=128)
    worker = PairWorker(options, 0, 4, Metrics().observe)
    worker.start()
    yield create_app(Engines(worker))
    worker.close()


def test_loading_another_pair(small: Starlette, client_of: Any, tiny_pair: Path) -> None:
    client = client_of(small)
    path = str(tiny_pair / "target.gguf")
    assert client.get("/v1/models").json()["data"][0]["id"] == path
    told = client.post("/load", {"pair": path, "context": 256, "draft": False})
    assert told.status_code == 200, told.text
    assert (told.json()["context"], told.json()["drafter"]) == (256, False)
    assert client.post("/v1/completions", {"prompt": "def", "max_tokens": 4}).status_code == 200
    missing = client.post("/load", {"pair": "embeded"})
    assert missing.status_code == 404
    assert "embedded" in missing.json()["error"]["message"]
    assert client.get("/ps").json()["context"] == 256


def test_a_load_that_fails_leaves_the_pair_that_was_there(small: Starlette, client_of: Any, tmp_path: Path) -> None:
    client = client_of(small)
    assert client.get("/v1/models").status_code == 200
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    told = client.post("/load", {"pair": str(broken)})
    assert told.status_code == 400, told.text
    assert told.json()["error"]["code"] == "unsupported_by_model"  # from which a client knows exit code 3
    assert client.get("/v1/models").status_code == 200
    assert client.post("/v1/completions", {"prompt": "def", "max_tokens": 4}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"pair": ""}, "pair"),
        ({"pair": 5}, "pair"),
        ({"pair": "x", "context": -1}, "context"),
        ({"pair": "x", "kv": "f64"}, "kv"),
        ({"pair": "x", "progress": 1}, None),
    ],
)
def test_what_cannot_be_loaded(client: Any, body: dict[str, Any], param: str | None) -> None:
    told = client.post("/load", body)
    assert told.status_code == 400
    assert told.json()["error"]["param"] == param


def test_loading_while_others_ask(small: Starlette, client_of: Any, tiny_pair: Path) -> None:
    client, path, done = client_of(small), str(tiny_pair / "target.gguf"), threading.Event()
    assert client.get("/v1/models").status_code == 200

    def ask(number: int) -> set[int]:
        told = set()
        while not done.is_set():
            body = {"prompt": "def f(x):\n" * 4, "max_tokens": 4, "stream": bool(number % 2), "logprobs": 1}
            told.add(client.post("/v1/completions", body).status_code)
        return told

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, number) for number in range(3)]
        loads = [client.post("/load", {"pair": path, "context": size}) for size in (256, 128, 256)]
        done.set()
    assert [load.json()["context"] for load in loads] == [256, 128, 256]
    assert all(200 in told.result() and told.result() <= {200, 503} for told in asked)


def test_the_choices_of_a_request_come_from_one_pair(client_of: Any, tiny_pair: Path) -> None:
    path = str(tiny_pair / "target.gguf")
    worker = PairWorker(Options(path, threads=1, context=1024, backend="llama.cpp"), 0, 4, Metrics().observe)
    client = client_of(create_app(Engines(worker)))
    worker.start()
    asyncio.run(worker.ready())
    body = {"prompt": "def", "max_tokens": 600, "temperature": 2.0, "n": 2, "grammar": "root ::= " + "[a-z] " * 1000}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.post, "/v1/completions", body)
        while not (worker.scheduler and worker.scheduler.running):
            assert not asked.done()
        assert client.post("/load", {"pair": path, "context": 256}).status_code == 200
        told = asked.result()
    worker.close()
    assert (told.status_code, told.json()["error"]["code"]) == (503, "model_changed")


def test_the_old_pair_is_gone_before_the_new_one_is_loaded(
    small: Starlette, client_of: Any, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, path = client_of(small), str(tiny_pair / "target.gguf")
    asked = {"prompt": "def", "max_tokens": 4, "grammar": "root ::= [a-z]+"}
    assert client.post("/v1/completions", asked).status_code == 200
    old = [
        weakref.ref(small.state.shared.engines.worker("chat").loaded),
        weakref.ref(small.state.shared.engines.worker("chat").loaded.pair),
    ]
    left: list[object] = []

    def load(options: Options) -> LoadedPair:
        gc.collect()
        left.extend(filter(None, (ref() for ref in old)))
        return LoadedPair(options)

    monkeypatch.setattr("localdflash.server.worker.LoadedPair", load)
    assert client.post("/load", {"pair": path, "context": 256}).status_code == 200
    assert left == []
    assert client.post("/v1/completions", asked).status_code == 200


def test_a_load_that_breaks_leaves_the_pair_that_was_there(
    small: Starlette, client_of: Any, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, path = client_of(small), str(tiny_pair / "target.gguf")
    assert client.get("/v1/models").status_code == 200

    def load(options: Options) -> LoadedPair:
        if options.context == 256:
            raise RuntimeError("something of a library")
        return LoadedPair(options)

    monkeypatch.setattr("localdflash.server.worker.LoadedPair", load)
    assert client.post("/load", {"pair": path, "context": 256}).status_code == 500
    assert client.get("/v1/models").status_code == 200
    assert client.get("/ps").json()["context"] == 128


def test_whatever_fails_while_loading_is_told(client_of: Any, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("localdflash.server.worker.DiskCache", refuse)
    options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1)
    worker = PairWorker(options, 0, 4, Metrics().observe, disk_bytes=1)
    worker.start()
    with pytest.raises(OSError, match="denied"):
        asyncio.run(asyncio.wait_for(worker.ready(), 20))
    assert "Loading failed" in client_of(create_app(Engines(worker))).get("/health").json()["error"]["message"]
    worker.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_thread_that_dies_is_a_failed_engine(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Scheduler, "run", die)
    worker = PairWorker(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1), 0, 4, Metrics().observe)
    worker.start()
    assert worker.failed.wait(20)
    worker.close()


def test_loads_that_come_together_all_hold(small: Starlette, client_of: Any, tiny_pair: Path) -> None:
    client, path = client_of(small), str(tiny_pair / "target.gguf")
    assert client.get("/v1/models").status_code == 200
    small.state.shared.engines._changing = lock = asyncio.Lock()
    both = ({"pair": path, "context": 256}, {"pair": path, "draft": False})

    async def load_both() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(small), base_url="http://x", timeout=60) as http:
            async with lock:
                tasks = [asyncio.create_task(http.post("/load", json=body)) for body in both]
                await asyncio.sleep(0.2)  # both have read their bodies
            assert [(await task).status_code for task in tasks] == [200, 200]

    asyncio.run(load_both())
    options = client.get("/ps").json()["options"]
    assert (options["context"], options["draft"]) == (256, False)


def test_an_engine_that_stops_ends_its_requests_with_an_error(client_of: Any, tiny_pair: Path) -> None:
    options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=1024)
    worker = PairWorker(options, 0, 4, Metrics().observe)
    client = client_of(create_app(Engines(worker)))
    worker.start()
    asyncio.run(worker.ready())
    body = {"prompt": "def", "max_tokens": 1000, "temperature": 2.0, "grammar": "root ::= " + "[a-z] " * 1000}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.post, "/v1/completions", body)
        while not (worker.scheduler and worker.scheduler.running and worker.scheduler.running.request.stats.steps):
            assert not asked.done()
        worker.close()
        told = asked.result()
    assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")
    told = client.post("/v1/completions", {"prompt": "def"})
    assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")


def test_closing_an_engine_that_loads(tiny_pair: Path) -> None:
    for _ in range(3):
        worker = PairWorker(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1), 0, 1, Metrics().observe)
        worker.start()
        worker.close()
        assert worker.loaded is None


def test_a_client_whose_event_loop_is_gone_does_not_end_the_engine(worker: PairWorker, client: Any) -> None:
    assert worker.loaded
    request = prepare_text(worker.loaded, "def", 400, SamplingParams(temperature=2.0)).request
    stream = worker.stream(request)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(stream))
    loop.close()
    with suppress(RuntimeError, StopIteration):
        stream.aclose().send(None)  # as the interpreter does at its end
    assert client.post(CHAT, HELLO).status_code == 200


def test_kernels_that_are_compiled_are_counted(
    client_of: Any, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = PairWorker(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1), 0, 1, Metrics().observe)
    client, seen = client_of(create_app(Engines(worker))), list[str]()

    def load(options: Options) -> Any:
        assert options.compiling
        for done in (0, 3, 37):
            options.compiling(done, 37)
            health, pairs = client.get("/health").json(), client.get("/ps").json()["pairs"]
            assert loading(health) == loading(pairs[0])
            seen.append(loading(health))
        raise OutOfMemory("enough")

    monkeypatch.setattr("localdflash.server.worker.LoadedPair", load)
    worker._run()
    assert seen == ["loading: compiling 0 of 37", "loading: compiling 3 of 37", "loading"]


def test_health_while_loading(client_of: Any, tiny_pair: Path) -> None:
    worker = PairWorker(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1), 0, 1, Metrics().observe)
    client = client_of(create_app(Engines(worker)))
    told = client.get("/health")
    assert told.status_code == 503
    assert told.json()["error"] == {"message": "Loading model", "type": "unavailable_error", "param": None, "code": 503}
    worker.start()
    asyncio.run(worker.ready())
    assert client.get("/health").json() == {"status": "ok"}
    worker.close()
