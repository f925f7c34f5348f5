"""The daemon as a process of its own: who may reach it, that there is one, and what ends it."""

import os
import signal
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

from localdflash import paths
from localdflash.errors import LocaldflashError, QueueFull, UsageError
from localdflash.server.client import find
from localdflash.server.sockets import peer_uid
from tests.daemons import DROPPED_SOCKET, LONG, PROGRAM, SLOW, begin, client, daemons, is_ready, killed, start, until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


def said(process: "subprocess.Popen[str]", seconds: float = 30) -> tuple[int, list[str]]:
    """How a daemon ended: its exit code and its lines."""
    _, err = process.communicate(timeout=seconds)
    return process.returncode, err.splitlines()


# Who may reach it


def test_only_the_user_may_reach_the_socket() -> None:
    start()
    path = paths.engine_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with client() as found:
        assert found.get("/ps")["pair"] == "embedded"


def test_it_says_where_it_listens_and_how_to_try_it() -> None:
    process = start()
    process.terminate()
    code, lines = said(process)
    assert code == 0
    assert lines[0].startswith(f"listening on {paths.engine_socket()}: curl --unix-socket ")
    assert lines[1] == "embedded is loaded (llama.cpp, 1024 tokens of context)"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_folder_that_others_may_enter_is_refused(mode: int) -> None:
    folder = paths.create_private(paths.runtime_folder())
    folder.chmod(mode)
    assert said(begin()) == (1, [f"localdflash: {folder}: open to other users: chmod 700 it"])
    with pytest.raises(LocaldflashError, match="open to other users"):
        find()


def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    paths.create_private(paths.runtime_folder())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(LocaldflashError, match="belongs to someone else"):
        find()


def test_a_link_in_place_of_the_folder_is_refused(short_home: Path) -> None:
    (short_home / "elsewhere").mkdir(mode=0o700)
    paths.runtime_folder().symlink_to(short_home / "elsewhere")
    with pytest.raises(LocaldflashError, match="not a folder"):
        find()
    assert said(begin())[0] == 1


@pytest.mark.parametrize("excess", [0, 1, 200])
def test_a_path_that_is_too_long_for_a_socket(excess: int, short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = paths.SOCKET_LIMIT - len(f"{short_home}//runtime/engine.sock")
    home = short_home / ("x" * min(room, 200)) / ("y" * excess)
    monkeypatch.setenv("LOCALDFLASH_HOME", str(home))
    with pytest.raises(UsageError, match=rf"must be shorter than {paths.SOCKET_LIMIT}: set LOCALDFLASH_HOME"):
        paths.engine_socket()
    code, lines = said(begin())
    assert (code, len(lines)) == (2, 1)


def test_the_longest_path_works(short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = paths.SOCKET_LIMIT - 1 - len(f"{short_home}//runtime/engine.sock")
    monkeypatch.setenv("LOCALDFLASH_HOME", str(short_home / ("x" * room)))
    process = start()
    assert is_ready()
    process.terminate()
    assert said(process)[0] == 0


# There is one


def test_a_second_one_is_refused_and_names_the_first() -> None:
    first = start()
    code, lines = said(begin())
    assert code == 1
    assert lines == [
        f"localdflash: an engine is running already (process {first.pid}, pair embedded): use it, or stop it with"
        " `localdflash serve --stop`"
    ]
    assert is_ready()


def test_a_stale_socket_is_replaced() -> None:
    killed(start())
    assert paths.engine_socket().is_socket()
    assert find() is None
    start()
    assert is_ready()


def test_what_lies_at_the_socket_path_is_replaced() -> None:
    paths.create_private(paths.runtime_folder())
    paths.engine_socket().write_text("not a socket")
    assert find() is None
    start()
    assert is_ready()


def test_one_that_is_about_to_leave_is_waited_for() -> None:
    first = start(program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, **LONG})
        next(answer)
        first.terminate()  # it lets the answer go on for some seconds
        until(lambda: not is_ready())
        second = start()
        assert first.poll() is not None
        assert second.poll() is None
        answer.close()


# What ends it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    assert said(process)[0] == 0
    assert not paths.engine_socket().exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_answer_is_finished_before_it_leaves(number: signal.Signals) -> None:
    process = start(program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 40, "temperature": 0})
        next(answer)
        process.send_signal(number)
        finishes = [choice["finish_reason"] for event in answer for choice in event["choices"]]
    assert finishes[-1] in ("stop", "length")
    assert said(process)[0] == 0


def test_a_second_signal_leaves_at_once() -> None:
    process = start(program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, **LONG})
        next(answer)
        process.send_signal(signal.SIGINT)
        until(lambda: not paths.engine_socket().exists())
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert time.monotonic() - began < 2
        with pytest.raises(LocaldflashError, match="went away"):
            list(answer)


def test_it_leaves_when_nobody_needs_it() -> None:
    process = start("--idle", "0.03")
    with client() as looking:
        for _ in range(5):  # whoever only looks does not keep it
            looking.get("/ps")
    began = time.monotonic()
    assert said(process)[0] == 0
    assert time.monotonic() - began < 10
    assert not paths.engine_socket().exists()


def test_the_time_that_loading_takes_is_not_idle() -> None:
    slow_to_load = "import time; from localdflash import loading; load = loading.LoadedPair.__init__\n"
    slow_to_load += "loading.LoadedPair.__init__ = lambda *a: (time.sleep(3), load(*a))[1]\n"
    process = start("--idle", "0.03", program=slow_to_load + PROGRAM)
    began = time.monotonic()
    assert said(process)[0] == 0
    assert time.monotonic() - began > 1


def test_a_log_that_cannot_be_bounded_and_a_word_that_cannot_be_said_end_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from localdflash.cli import serve
    from localdflash.server import daemon

    monkeypatch.setattr(daemon, "LARGEST_LOG", -1)
    daemon._bound(tmp_path / "gone" / "engine.log")
    monkeypatch.setattr(sys, "stderr", Mock(**{"write.side_effect": BrokenPipeError}))
    serve._say("hello")


def test_it_leaves_when_its_socket_is_removed() -> None:
    process = start()
    paths.engine_socket().unlink()
    assert said(process)[0] == 0


def test_an_answer_keeps_it() -> None:
    process = start("--idle", "0.01", program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 40, "temperature": 0})
        assert sum(1 for _ in answer) > 3
    assert said(process)[0] == 0


def test_a_pair_that_does_not_load_is_one_line_and_its_exit_code() -> None:
    code, lines = said(start("--pair", "embeded"))
    assert code == 3
    assert lines[-1] == "localdflash: no pair 'embeded'; did you mean 'embedded'?"
    assert not paths.engine_socket().exists()


def test_a_lost_device_ends_it_with_code_5() -> None:
    broken = (
        "from localdflash.engine.host_pair import HostPair; from localdflash.errors import DeviceFailed\n"
        "def step(*_): raise DeviceFailed('CUDA error 700')\n"
        "HostPair.step = step\n"
    )
    process = start(program=broken + PROGRAM)
    with client() as talking, pytest.raises(LocaldflashError):
        list(talking.stream("/v1/chat/completions", {**CHAT, **LONG}))
    code, lines = said(process)
    assert code == 5
    assert "start the engine again" in lines[-1]


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
from localdflash.server.client import Client
answer = Client.of_socket(Path(sys.argv[1])).stream("/v1/chat/completions", {{**{CHAT!r}, **{LONG!r}}})
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
    settings = "Settings(Options(threads=1), 10**8, 1)"
    program = (
        f"{SLOW}from localdflash.server.daemon import Settings, serve; from localdflash.loading import Options;"
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
    with ours, theirs:
        assert peer_uid(ours) == os.getuid()
    config = uvicorn.Config(lambda: None, log_config=None)
    for uid, aborted in ((os.getuid(), False), (os.getuid() + 1, True)):
        monkeypatch.setattr(daemon, "peer_uid", lambda _, uid=uid: uid)
        transport = Mock(**{"get_extra_info.return_value": None})
        state = uvicorn.server.ServerState()
        protocol = daemon.PeerChecked(config, state, {}, _loop=Mock())
        protocol.connection_made(transport)
        assert transport.abort.called is aborted
        assert bool(state.connections) is not aborted


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
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(paths.engine_socket()))
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
