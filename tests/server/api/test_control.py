"""Engine status, metrics, reloading, stopping and failures."""

import asyncio
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from localdflash.base.errors import LocaldflashError, NoDevice, OutOfMemory
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.scheduler import Scheduler
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import PREFIXES, PROGRAM, TARGET
from localdflash.server.api.completion_request import prepare_text
from localdflash.server.api.control import _with_prefixes
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.refusals import error_of_response
from localdflash.server.spawn import loading_stage
from localdflash.server.worker import PairWorker
from localdflash.text.stream import AnswerText, Detokenizer

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
WORDS = {"prompt": "def", "max_tokens": 4, "grammar": "root ::= [a-z]+"}
ENDLESS = {"prompt": "def", "max_tokens": 600, "temperature": 2.0, "grammar": "root ::= " + "[a-z] " * 1000}
LOADED = "localdflash.server.worker.LoadedPair"


def scraped(client: Any) -> dict[tuple[str, ...], float]:
    """Return the samples of /metrics by name and label values."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_count_what_happens(client: Any) -> None:
    before = scraped(client)
    told = client.post(CHAT, HELLO).json()
    client.get("/nothing")
    client.post(CHAT, {})
    after = scraped(client)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0.0)

    timings = told["timings"]
    requests = [(CHAT, "200"), (CHAT, "400"), ("other", "404")]
    assert [grown("localdflash_http_requests_total", *one) for one in requests] == [1, 1, 1]
    assert grown("localdflash_requests_total") == 1
    assert grown("localdflash_tokens_total") == told["usage"]["completion_tokens"]
    assert grown("localdflash_steps_total") == grown("localdflash_verify_seconds_count") == timings["steps"]
    assert grown("localdflash_first_token_seconds_count") == 1
    assert grown("llamacpp:tokens_predicted_total") == told["usage"]["completion_tokens"]
    assert grown("llamacpp:n_decode_total") == timings["steps"]
    assert grown("localdflash_prompt_tokens_total") == told["usage"]["prompt_tokens"]
    drafted = [name for name in after if name[0] == "localdflash_drafted_total"]
    assert sum(after[name] - before.get(name, 0.0) for name in drafted) == timings["draft_n"]
    assert all(math.isfinite(value) for value in after.values())


def test_stopping(client: Any, worker: PairWorker, client_of: Any) -> None:
    stopped: list[bool] = []
    assert client.post("/stop", {}).status_code == 404, "it was not made to be stopped"
    stoppable = client_of(create_app(Engines(worker), stop=lambda: stopped.append(True)))
    assert stoppable("GET", "/stop").status_code == 405
    assert stoppable.post("/stop", {}).status_code == 200
    assert stopped == [True]


@pytest.fixture
def made(tiny_pair: Path) -> Iterator[Callable[..., PairWorker]]:
    """Create a worker of the tiny pair without starting it."""
    workers: list[PairWorker] = []

    def make(path: str = "", context: int = 1024, **more: Any) -> PairWorker:
        options = Options(path or str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=context)
        workers.append(PairWorker(options, 0, 4, Metrics().observe, **more))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def small(made: Callable[..., PairWorker]) -> Starlette:
    worker = made(context=128)
    worker.start()
    asyncio.run(worker.ready())
    return create_app(Engines(worker))


@pytest.fixture
def path(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


def test_loading_another_pair(
    small: Starlette, client_of: Any, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old pair is freed before the new one is loaded; if that fails, the old one is loaded again."""
    client = client_of(small)
    assert client.get("/v1/models").json()["data"][0]["id"] == path
    assert client.post("/v1/completions", WORDS).status_code == 200
    loaded = small.state.shared.engines.worker("chat").loaded
    errors = {512: RuntimeError("a bug"), 768: NoDevice("no driver"), 1024: LocaldflashError("no process")}
    old, left = [weakref.ref(loaded), weakref.ref(loaded.pair)], list[object]()
    del loaded

    def load(options: Options) -> LoadedPair:
        if error := errors.get(options.context):
            raise error
        gc.collect()
        left.extend(filter(None, (ref() for ref in old)))
        return LoadedPair(options)

    monkeypatch.setattr(LOADED, load)
    told = client.post("/load", {"pair": path, "context": 256, "draft": False})
    assert (told.status_code, left) == (200, [])
    assert (told.json()["context"], told.json()["drafter"]) == (256, False)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    for body, status, code, exit_code in (
        ({"pair": "embeded"}, 404, "model_not_found", 3),
        ({"pair": str(broken)}, 400, "unsupported_by_model", 3),
        ({"pair": path, "context": 512}, 500, "internal_error", 1),
        ({"pair": path, "context": 768}, 503, "no_device", 1),
        ({"pair": path, "context": 1024}, 500, 500, 1),
    ):
        told = client.post("/load", body)
        assert (told.status_code, told.json()["error"]["code"]) == (status, code)
        assert error_of_response(told.content, status).exit_code == exit_code
        assert client.post("/v1/completions", WORDS).status_code == 200
        assert client.get("/ps").json()["context"] == 256


async def test_a_request_whose_engine_stops(made: Callable[..., PairWorker]) -> None:
    worker = made()
    app = create_app(Engines(worker))
    worker.start()
    await worker.ready()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x", timeout=60) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json={**ENDLESS, "max_tokens": 1000}))
        while not (worker.scheduler and worker.scheduler.running and worker.scheduler.running.request.stats.steps):
            await asyncio.sleep(0.005)
        await asyncio.to_thread(worker.close)
        for told in (await asked, await http.post("/v1/completions", json=WORDS)):
            assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")


def test_a_model_that_cannot_be_loaded(made: Callable[..., PairWorker], client_of: Any) -> None:
    worker = made("no-such-pair")
    client = client_of(create_app(Engines(worker)))
    told = client.get("/health")
    assert told.status_code == 503
    assert told.json()["error"] == {"message": "Loading model", "type": "unavailable_error", "param": None, "code": 503}
    worker.start()
    with pytest.raises(Exception, match="no-such-pair"):
        asyncio.run(worker.ready())
    told = client.post(CHAT, HELLO)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "model_not_loaded")
    assert "no-such-pair" in told.json()["error"]["message"]
    assert client.get("/health").status_code == 503
    assert client.get("/ps").json()["pair"] == "no-such-pair"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_thread_that_dies_is_a_failed_engine(
    made: Callable[..., PairWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_early = made()
    closed_early.start()
    closed_early.close()
    assert closed_early.loaded is None

    def die(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Scheduler, "run", die)
    worker = made()
    worker.start()
    assert worker.device_lost.wait(20)


def test_a_client_whose_event_loop_is_gone_does_not_end_the_engine(worker: PairWorker, client: Any) -> None:
    assert worker.loaded
    (request,) = prepare_text(worker.loaded, "def", 400, SamplingParams(temperature=2.0)).requests
    stream = worker.stream(request, AnswerText(Detokenizer(worker.loaded.tokenizer), request.ends))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(stream))
    loop.close()
    with suppress(RuntimeError, StopIteration):
        stream.aclose().send(None)  # as the interpreter does at its end
    assert client.post(CHAT, HELLO).status_code == 200


def test_kernels_that_are_compiled_are_counted(
    made: Callable[..., PairWorker], client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = made()
    client, seen = client_of(create_app(Engines(worker))), list[str]()

    def load(options: Options) -> Any:
        assert options.compiling
        for done in (0, 3, 37):
            options.compiling(done, 37)
            health, pairs = client.get("/health").json(), client.get("/ps").json()["pairs"]
            assert loading_stage(health) == loading_stage(pairs[0])
            seen.append(loading_stage(health))
        raise OutOfMemory("enough")

    monkeypatch.setattr(LOADED, load)
    worker._run()
    assert seen == ["loading: compiling 0 of 37", "loading: compiling 3 of 37", "loading"]


def test_the_program_is_counted_without_the_pairs_and_their_prefix_caches() -> None:
    def pair(weights: int, prefixes: int) -> Any:
        memory = {TARGET: weights, PROGRAM: 1000 - weights}  # of 1000 resident bytes
        return SimpleNamespace(
            loaded=SimpleNamespace(memory=lambda: memory, device="cpu"), prefix_bytes=prefixes, scheduler=True
        )

    chat, completion = pair(300, 40), pair(200, 10)
    engines: Any = SimpleNamespace(workers=[chat, completion])
    shown = [_with_prefixes(engines, one, one.loaded.memory()) for one in engines.workers]
    assert shown == [{TARGET: 300, PROGRAM: 450, PREFIXES: 40}, {TARGET: 200, PROGRAM: 450, PREFIXES: 10}]
