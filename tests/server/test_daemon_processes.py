"""Daemon processes: one at a time, signals, exit codes, the log, and `serve --port` next to a daemon."""

import signal
import socket
import stat
import subprocess
import time

import httpx2
import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.server import sockets
from localdflash.server.client import find_daemon
from tests.support.daemons import (
    BY_TCP,
    LONG,
    PROCESS_MARKS,
    PROGRAM,
    SLOW,
    begin,
    client,
    connect,
    is_ready,
    killed,
    said,
    start,
    until,
)

pytestmark = PROCESS_MARKS
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
ANSWER = "/v1/chat/completions"


def test_a_second_one_is_refused_and_what_a_killed_one_left_is_replaced() -> None:
    first = start()
    code, lines = said(begin())
    assert code == 1
    assert lines == [
        f"localdflash: a daemon is already running (process {first.pid}, pair embedded); use it, or stop it with"
        " `localdflash serve --stop`"
    ]
    assert is_ready()
    killed(first)
    assert paths.daemon_socket().exists()
    assert find_daemon() is None
    start()
    assert is_ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_a_second_one_at_once(number: signal.Signals) -> None:
    process = start(program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream(ANSWER, {**CHAT, **LONG})
        next(answer)
        process.send_signal(number)
        until(lambda: not paths.daemon_socket().exists())
        assert next(answer)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        assert time.monotonic() - began < 2
        with pytest.raises(LocaldflashError, match="went away"):
            list(answer)


def test_the_log_has_no_user_text() -> None:
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
                talking.post(ANSWER, body)
            except LocaldflashError:
                continue
    with connect() as raw:
        raw.sendall(f"GET /{canary} {canary}\r\n\r\n".encode())
        raw.recv(1000)
    process.terminate()
    assert said(process) == (0, [])
    assert "embedded is loaded" in log.read_text()
    assert canary not in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def join(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """Run `serve --port` next to a running daemon; return the process and its address."""
    process = begin("--port", "0", *arguments)
    assert process.stderr
    line = process.stderr.readline()
    return process, line.split("listening on ")[1].split(": curl")[0]


def is_open(base: str) -> bool:
    try:
        return httpx2.get(f"{base}/health", trust_env=False).status_code == 200
    except httpx2.ConnectError:
        return False


def test_the_port_closes_with_the_command_however_that_ends() -> None:
    start(program=SLOW + PROGRAM)
    for how in (signal.SIGINT, signal.SIGKILL):
        process, base = join()
        headers = {"x-api-key": paths.key_file().read_text().strip()}
        with (
            client() as looking,
            httpx2.Client(trust_env=False, headers=headers) as http,
            http.stream("POST", f"{base}{ANSWER}", json={**CHAT, **LONG}) as answer,
        ):
            next(answer.iter_lines())
            process.send_signal(how)
            until(lambda: not is_open(base))  # noqa: B023
            until(lambda: looking.get("/ps")["running"] == 0, 8)  # its answers are cancelled in time
        assert process.wait(10) == (0 if how == signal.SIGINT else -how)
        assert is_ready()


def test_the_command_ends_with_the_engine() -> None:
    engine = start()
    process, base = join()
    engine.terminate()
    assert process.wait(10) == 0
    assert process.stderr
    assert process.stderr.read().endswith("the daemon has stopped; this port is closed\n")
    assert not is_open(base)
    assert engine.wait(10) == 0
    engine = start()
    process, base = join()
    killed(engine)
    assert process.wait(10) == 1
    assert process.stderr
    assert "went away" in process.stderr.read()


def test_the_lock_of_a_port_ends_with_the_process_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "tcp")
    process = start()
    assert find_daemon()
    killed(process)
    held = sockets._PORT_FILE.fullmatch(paths.daemon_socket().read_bytes())
    assert held
    with socket.create_server(("127.0.0.1", int(held[1]))) as imposter:  # who takes the port gets nothing
        assert find_daemon() is None
        imposter.settimeout(0.1)
        with pytest.raises(TimeoutError):
            imposter.accept()


@pytest.mark.skipif(BY_TCP, reason="is about both transports")
def test_an_engine_that_listens_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "tcp")
    process = start()
    by_port = paths.daemon_socket()
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "unix")
    assert find_daemon() is None
    code, lines = said(begin())
    assert code == 1
    assert lines == [
        f"localdflash: a daemon is already running at {by_port}; stop it with `LOCALDFLASH_TRANSPORT=tcp localdflash"
        " serve --stop`, or unset LOCALDFLASH_TRANSPORT"
    ]
    assert process.poll() is None
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "pigeon")
    assert said(begin()) == (
        2,
        ["localdflash: LOCALDFLASH_TRANSPORT: unknown transport 'pigeon' (expected unix or tcp)"],
    )
