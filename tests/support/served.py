"""Engine with the embedded pair, its app in this process, and the same app behind a Unix socket and TCP."""

import asyncio
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette

from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.code.fim.prompt import Gap
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.scheduler import Scheduler
from localdflash.lab.scripts.support import bench_daemon
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.completion_request import prepare_infill
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.guard import Guard
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker
from tests.support.costs import drafting_pays

KEY = "a-key-of-this-test"


@pytest.fixture(scope="session")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="session")
def engine_set(metrics: Metrics) -> Iterator[Engines]:
    """Start one engine that drafts independently of this machine's speed; a test may reload it."""
    options = Options(threads=1, backend="llama.cpp", costs=drafting_pays, rows="exact")
    engines = Engines(PairWorker(options, 64_000_000, 4, metrics.observe))
    engines.start()
    asyncio.run(engines.ready("chat"))
    yield engines
    engines.close()


@pytest.fixture
def worker(engine_set: Engines) -> PairWorker:
    """Return the current engine."""
    worker = engine_set.worker("chat")
    assert worker
    return worker


def delayed(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sleeps, then calls `function`."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        time.sleep(seconds)
        return function(*arguments, **keywords)

    return call


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make steps take 20 ms, so that an answer runs until a test ends it."""
    monkeypatch.setattr(HostPair, "step", delayed(0.02, HostPair.step))


@pytest.fixture(scope="session")
def app(engine_set: Engines, metrics: Metrics) -> Starlette:
    """Return the app; token healing is ready before its first request."""
    application = create_app(engine_set, metrics)
    worker = engine_set.worker("chat")
    assert worker
    loaded = worker.loaded
    assert loaded
    application.state.shared.infill_planner(loaded)._spellings.result()
    return application


@dataclass(frozen=True)
class Client:
    """Client of an app in this process; each request has its own event loop."""

    app: Any
    headers: dict[str, str]

    def __call__(self, method: str, path: str, **request: Any) -> httpx2.Response:
        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
                return await client.request(
                    method, path, headers={**self.headers, **request.pop("headers", {})}, **request
                )

        return asyncio.run(send())

    def get(self, path: str, **request: Any) -> httpx2.Response:
        return self("GET", path, **request)

    def post(self, path: str, body: Any, **request: Any) -> httpx2.Response:
        return self("POST", path, json=body, **request)

    def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """Return the events of a stream, which ends as OpenAI's do."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events if event != ": ping"]


@pytest.fixture
def client(app: Starlette) -> Client:
    return Client(app, {})


@pytest.fixture
def client_of() -> Callable[[Any], Client]:
    return lambda app: Client(app, {})


@contextmanager
def serving(app: Any, listener: socket.socket) -> Iterator[None]:
    config = uvicorn.Config(app, lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Live:
    """Server on a Unix socket, and on TCP with a guard."""

    socket: Path
    port: int
    key: str
    engines: Engines

    @property
    def worker(self) -> PairWorker:
        """Return the current engine."""
        worker = self.engines.worker("chat")
        assert worker
        return worker

    def client(self) -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=str(self.socket))
        return httpx2.Client(transport=transport, base_url="http://localhost", timeout=60)

    @property
    def scheduler(self) -> Scheduler:
        assert self.worker.scheduler
        return self.worker.scheduler

    def until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait until a condition holds."""
        bench_daemon.until(holds, seconds)

    def until_idle(self) -> None:
        self.until(lambda: self.scheduler.running is None and not self.scheduler.queue_length)


@pytest.fixture(scope="session")
def live(app: Starlette, engine_set: Engines) -> Iterator[Live]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "s"))
        unix.listen(64)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = tcp.getsockname()[1]
        stack.enter_context(serving(app, unix))
        stack.enter_context(serving(Guard(app, key=KEY), tcp))
        yield Live(folder / "s", port, KEY, engine_set)


@pytest.fixture(scope="session")
def plain() -> Iterator[LoadedPair]:
    """Load the target without drafts, cache and server."""
    with LoadedPair(Options(threads=1, draft=False, backend="llama.cpp", rows="exact")) as loaded:
        yield loaded


@pytest.fixture
def filled(plain: LoadedPair) -> Callable[..., str]:
    """Return a function that gives the suggestion at a cursor, decoded without drafts in this process."""
    planner = InfillPlanner(plain, patience=None)

    def text(prefix: str, suffix: str, max_tokens: int) -> str:
        gap = Gap("", "", prefix, "", suffix)
        plan = planner.plan(gap, max_tokens=max_tokens, params=SamplingParams(), max_prompt_tokens=plain.context)
        return answer_directly(plain, prepare_infill(plain, plan)).text

    return text
