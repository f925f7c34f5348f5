"""The daemon in this process: access control, shutdown, and ports for other programs."""

import asyncio
import json
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import uvicorn

from localdflash.base.errors import DeviceError, LocaldflashError, ModelError, UsageError
from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from localdflash.engine.host_pair import HostPair
from localdflash.models.load_options import Options
from localdflash.server import daemon
from localdflash.server.client import find_daemon
from localdflash.server.daemon import Daemon, DaemonSettings
from localdflash.server.sockets import listen_at, path_lock, prepare_folder
from tests.support.daemons import unix_only

pytestmark = [
    pytest.mark.usefixtures("short_home"),
    unix_only,
]
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
ENDLESS = {**HELLO, "max_tokens": 900, "temperature": 3.0, "seed": 1, "grammar": "root ::= " + "[a-z] " * 950}
CHAT = "/v1/chat/completions"
Start = Callable[..., Any]


class Running:
    """A daemon that runs in this loop, and a client of its socket."""

    def __init__(self, made: Daemon, task: "asyncio.Task[None]") -> None:
        self.daemon, self.task, self.path = made, task, paths.daemon_socket()
        transport = httpx2.AsyncHTTPTransport(uds=str(self.path))
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    async def get(self, target: str) -> Any:
        return (await self.http.get(target)).json()

    async def ends(self, seconds: float = 20) -> float:
        """Wait until the daemon has ended; return the seconds."""
        began = time.monotonic()
        await asyncio.wait_for(self.task, seconds)
        assert not self.path.exists()
        return time.monotonic() - began


@pytest.fixture
async def start(tiny_pair: Path) -> AsyncIterator[Start]:
    """Start a daemon that serves the tiny pair, and wait until the pair is loaded."""
    made = list[Running]()
    with ExitStack() as stack:

        async def begin(*, pair: str = str(tiny_pair / "target.gguf"), **settings: Any) -> Running:
            path = paths.daemon_socket()
            prepare_folder(path)
            stack.enter_context(path_lock(path))
            own = stack.enter_context(listen_at(path))
            options = Options(pair, "llama.cpp", threads=1, context=1024)
            daemon = Daemon(DaemonSettings(options, 8_000_000, 4, **settings), lambda _: None, path, own)
            task = asyncio.create_task(daemon.run([own.listener]))
            made.append(Running(daemon, task))
            while not task.done() and not daemon._engines.workers[0].loaded:
                await asyncio.sleep(0.01)
            return made[-1]

        yield begin
        for one in made:
            await one.http.aclose()
            one.daemon.stop()
            with suppress(LocaldflashError, asyncio.TimeoutError):
                await asyncio.wait_for(one.task, 20)
            await asyncio.to_thread(one.daemon._engines.close)


@asynccontextmanager
async def answering(running: Running, **change: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Start an answer and yield its events."""
    async with running.http.stream("POST", CHAT, json={**ENDLESS, "stream": True, **change}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        yield (json.loads(line[6:]) async for line in lines if line.startswith("data: {"))


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_only_the_user_may_reach_it(start: Start) -> None:
    running = await start()
    assert stat.S_IMODE(running.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600
    assert (await running.http.post(CHAT, json=HELLO)).json()["usage"]["completion_tokens"] == 4
    assert not paths.key_file().exists()


def test_a_folder_that_is_not_the_users_alone_is_refused(short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = paths.create_private(paths.runtime_folder())
    for mode in (0o755, 0o710, 0o701):
        folder.chmod(mode)
        with pytest.raises(LocaldflashError, match="open to other users; run `chmod 700` on it"):
            prepare_folder(paths.daemon_socket())
        with pytest.raises(LocaldflashError, match="open to other users"):
            find_daemon()
    folder.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(LocaldflashError, match="belongs to another user"):
            find_daemon()
    folder.rmdir()
    (short_home / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(short_home / "elsewhere")
    with pytest.raises(LocaldflashError, match="not a folder"):
        find_daemon()


def test_a_socket_path_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_HOME", "/tmp/" + "x" * paths.SOCKET_LIMIT)
    with pytest.raises(UsageError, match=r"path is too long .*; set LOCALDFLASH_HOME"):
        paths.daemon_socket()


def test_a_connection_of_another_user_is_closed_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    config = uvicorn.Config(lambda: None, log_config=None)
    for uid, aborted in ((os.getuid(), False), (os.getuid() + 1, True)):
        monkeypatch.setattr(unix_socket, "peer_uid", lambda _, uid=uid: uid)
        transport = Mock(**{"get_extra_info.return_value": ours})
        state = uvicorn.server.ServerState()
        protocol = daemon.OwnConnection(config, state, {}, _loop=Mock())
        protocol.connection_made(transport)
        assert transport.abort.called is aborted
        assert bool(state.connections) is not aborted
    ours.close()
    theirs.close()


@pytest.mark.usefixtures("slow")
async def test_an_answer_keeps_it_and_it_leaves_when_nobody_needs_it(start: Start) -> None:
    running = await start(idle=0.5)
    began = time.monotonic()
    async with answering(running, max_tokens=60) as events:
        finishes = [choice["finish_reason"] async for event in events for choice in event["choices"]]
    assert finishes[-1] == "length"
    assert time.monotonic() - began > 1
    for _ in range(6):  # whoever only looks does not keep it
        await running.get("/ps")
        await asyncio.sleep(0.05)
    assert await running.ends() < 3


@pytest.mark.usefixtures("slow")
async def test_requests_that_run_at_the_end_get_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One is streamed, one waits in the queue, and one waits for a pair."""
    monkeypatch.setattr(daemon, "GRACE_SECONDS", 0.2)
    running = await start()

    async def is_waiting() -> bool:
        return bool((await running.get("/ps"))["waiting"])

    async with answering(running) as events:
        queued = asyncio.create_task(running.http.post(CHAT, json=ENDLESS))
        await until(is_waiting)
        asked = asyncio.Event()

        async def load(*_: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(running.daemon._engines, "ready", load)
        loading = asyncio.create_task(running.http.post(CHAT, json=HELLO))
        await asked.wait()
        running.daemon.stop()
        assert [event async for event in events][-1]["error"]["code"] == "engine_stopped"
        for told in await asyncio.gather(queued, loading):
            assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")
    await running.ends()
    assert not caplog.records


async def test_events_about_models_do_not_keep_it(start: Start) -> None:
    """The stream ends with the daemon, which leaves while a client waits for events."""
    running = await start(idle=0.5)
    async with running.http.stream("GET", "/models/sse") as events:
        assert await running.ends() < 3
        assert [line async for line in events.aiter_lines() if line] == [": ping"]


async def test_it_leaves_when_its_socket_is_removed(start: Start) -> None:
    running = await start()
    running.path.unlink()
    await running.ends(5)


async def test_a_pair_that_does_not_load(start: Start) -> None:
    running = await start(pair="embeded")
    with pytest.raises(ModelError, match=r"no pair 'embeded'; did you mean 'embedded'\?"):
        await running.task


async def test_a_lost_device(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise DeviceError("CUDA error 700")

    running = await start()
    monkeypatch.setattr(HostPair, "step", lost)
    assert (await running.http.post(CHAT, json=HELLO)).status_code == 503
    with pytest.raises(DeviceError, match="restart the daemon"):
        await running.task


async def status(port: int | str, path: str = "/v1/models", **headers: str) -> int:
    """Return the status of an answer; 0 if nothing listens."""
    url = port if isinstance(port, str) else f"http://127.0.0.1:{port}"
    with suppress(httpx2.ConnectError, httpx2.RemoteProtocolError):  # the latter: accepted while the port closes
        async with httpx2.AsyncClient(trust_env=False) as http:
            return (await http.get(url + path, headers=headers)).status_code
    return 0


@pytest.mark.usefixtures("slow")
async def test_a_port_of_a_running_engine_lasts_as_long_as_its_request(start: Start) -> None:
    """An open port keeps the engine, and has the rules of any TCP port."""
    running = await start(idle=1.0)
    body = {"host": "127.0.0.1", "port": 0, "hosts": ["127.0.0.1"]}
    async with running.http.stream("POST", "/listen", json=body) as port:
        lines = port.aiter_lines()  # which closes the answer when it is gone
        url = json.loads((await anext(lines))[6:])["url"]
        key = paths.key_file().read_text().strip()
        assert stat.S_IMODE(paths.key_file().stat().st_mode) == 0o600
        assert (await status(url), await status(url, **{"x-api-key": key})) == (401, 200)
        headers = {"x-api-key": key}
        async with httpx2.AsyncClient(trust_env=False, headers=headers, base_url=url) as http:
            assert (await http.post("/listen", json=body)).status_code == 403
        async with running.http.stream("POST", "/listen", json=body) as other:
            more = other.aiter_lines()
            second = json.loads((await anext(more))[6:])["url"]
            assert second != url
            assert await status(second, "/health") == 200
        await until(lambda: _is_closed(second))
        await asyncio.sleep(1.2)
        assert await status(url, "/health") == 200, "an engine whose port is held is not idle"
        taken = {**body, "port": int(url.rsplit(":", 1)[1])}
        told = await running.http.post("/listen", json=taken)
        assert told.json()["error"]["message"].endswith("is in use; choose another port with --port")
    await until(lambda: _is_closed(url))
    await running.ends()


async def _is_closed(url: str) -> bool:
    return await status(url, "/health") == 0


def test_the_log_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "engine.log"
    monkeypatch.setattr(daemon, "MAX_LOG_BYTES", 1000)
    before = os.dup(2)
    try:
        daemon._redirect_stderr(log)
        for number in range(300):
            os.write(2, f"line {number:04}\n".encode())
            daemon._rotate(log)
    finally:
        os.dup2(before, 2)
        os.close(before)
    old = log.with_suffix(".old.log")
    assert log.stat().st_size <= 1000 < old.stat().st_size < 1100
    assert (old.read_text() + log.read_text()).endswith("line 0299\n")
    monkeypatch.setattr(daemon, "MAX_LOG_BYTES", -1)
    daemon._rotate(tmp_path / "gone" / "engine.log")  # a full disk ends nothing
