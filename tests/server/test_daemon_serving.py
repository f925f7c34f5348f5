"""What a daemon is for those that it serves: clients that die or wait, a log without their words, TCP with a key."""

import os
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import httpx2
import pytest
import uvicorn

from localdflash.base.errors import LocaldflashError, QueueFull
from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from tests.support.daemons import (
    DROPPED_SOCKET,
    LONG,
    PROGRAM,
    SLOW,
    client,
    connected,
    daemons,
    said,
    start,
    unix_only,
    until,
)

pytestmark = [
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


# Clients


def test_a_client_that_dies_frees_the_engine_within_a_step() -> None:
    start(program=SLOW + PROGRAM)
    dying = subprocess.Popen(
        [sys.executable, "-P", "-c", DYING, str(paths.engine_socket())], stdout=subprocess.PIPE, text=True
    )
    with dying, client() as looking:
        assert dying.stdout
        assert dying.stdout.readline() == "begun\n"
        assert looking.get("/ps")["running"] == 1
        dying.kill()
        began = time.monotonic()
        until(lambda: looking.get("/ps")["running"] == 0)
        assert time.monotonic() - began < 1  # a step takes 0.05 s


DYING = f"""
import sys
from pathlib import Path
from localdflash.server.address import Address
from localdflash.server.client import Client
answer = Client(Address(Path(sys.argv[1]))).stream("/v1/chat/completions", {{**{CHAT!r}, **{LONG!r}}})
next(answer), next(answer)
print("begun", flush=True)
for _ in answer: pass
"""


def test_a_stream_that_is_closed_frees_the_engine() -> None:
    start(program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, **LONG})
        next(answer)
        assert talking.get("/ps")["running"] == 1
        answer.close()
        until(lambda: talking.get("/ps")["running"] == 0, 2)


def test_a_full_queue_says_so() -> None:
    settings = "DaemonSettings(Options(backend='llama.cpp', threads=1), 10**8, 1)"
    program = (
        f"{SLOW}from localdflash.server.daemon import DaemonSettings, serve;"
        "from localdflash.models.load_options import Options;"
        f"serve({settings}, print)"
    )
    start(program=program)
    with client() as one, client() as two, client() as looking, ThreadPoolExecutor(1) as threads:
        running = one.stream("/v1/chat/completions", {**CHAT, **LONG})
        next(running)
        waiting = threads.submit(two.post, "/v1/chat/completions", {**CHAT, "max_tokens": 4})
        until(lambda: looking.get("/ps")["waiting"] == 1)
        with pytest.raises(QueueFull, match="1 requests are waiting"):
            looking.post("/v1/chat/completions", {**CHAT, "max_tokens": 4})
        running.close()
        assert waiting.result(30)["choices"][0]["finish_reason"] == "length"


def test_a_connection_of_another_user_is_closed_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.server import daemon

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


def test_the_log_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.server import daemon

    log = tmp_path / "engine.log"
    monkeypatch.setattr(daemon, "LARGEST_LOG", 1000)
    before = os.dup(2)
    try:
        daemon._redirect_stderr(log)
        for number in range(300):
            os.write(2, f"line {number:04}\n".encode())
            daemon._bound(log)
    finally:
        os.dup2(before, 2)
        os.close(before)
    old = log.with_suffix(".old.log")
    assert log.stat().st_size <= 1000 < old.stat().st_size < 1100
    assert (old.read_text() + log.read_text()).endswith("line 0299\n")


# The log


def test_the_log_has_no_word_of_a_user() -> None:
    log = paths.create_private(paths.runtime_folder()) / "engine.log"
    process = start("--log", str(log))
    canary = "xyzzycanary"
    with client() as talking:
        for body in (
            {"messages": [{"role": "user", "content": canary}], "max_tokens": 3},
            {"messages": [{"role": canary, "content": canary}]},
            {"messages": canary},
            {"messages": [{"role": "user", "content": canary * 2000}]},
        ):
            try:
                talking.post("/v1/chat/completions", body)
            except LocaldflashError:
                continue
    with connected() as raw:
        raw.sendall(f"GET /{canary} {canary}\r\n\r\n".encode())
        raw.recv(1000)
    process.terminate()
    code, lines = said(process)
    assert (code, lines) == (0, [])
    assert "embedded is loaded" in log.read_text()
    assert canary not in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


# TCP


def base_of(process: "subprocess.Popen[str]") -> str:
    """Where a daemon listens on TCP."""
    assert process.stderr
    process.stderr.readline()
    return process.stderr.readline().split()[2].rstrip(":")


def test_the_key_is_required_over_tcp_and_made_for_this_user_alone() -> None:
    process = start("--port", "0")
    base = base_of(process)
    assert stat.S_IMODE(paths.key_file().stat().st_mode) == 0o600
    key = paths.key_file().read_text().strip()
    assert len(key) >= 32
    with httpx2.Client(base_url=base, trust_env=False) as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/v1/models", headers={"Authorization": f"Bearer {key}x"}).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    with client() as found:
        assert found.get("/v1/models")["data"][0]["id"] == "embedded"


def test_the_key_is_made_once() -> None:
    keys = set()
    for _ in range(2):
        process = start("--port", "0")
        keys.add(paths.key_file().read_text())
        process.terminate()
        assert said(process)[0] == 0
    assert len(keys) == 1


@unix_only
def test_without_a_port_there_is_no_tcp_and_no_key() -> None:
    process = start()
    (found,) = daemons(Path(os.environ["LOCALDFLASH_HOME"]))
    assert found.pid == process.pid
    assert [c for c in found.net_connections("inet") if c.status == "LISTEN"] == []
    assert not paths.key_file().exists()


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = said(start("--port", str(port)))
    assert code == 2
    assert lines == [f"localdflash: port {port} on 127.0.0.1 is in use: choose another one with --port"]
    assert not paths.engine_socket().exists()
