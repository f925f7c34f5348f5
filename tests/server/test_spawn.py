"""Starting the daemon: concurrent starts, replacement of another version, failures."""

import io
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.base.files import paths
from localdflash.server import spawn
from localdflash.server.client import Client, find_daemon
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.spawn import ensure_daemon
from tests.support.daemons import GPU_ENDS_LOADING, PROCESS_MARKS, PROGRAM, begin, daemons, killed, start, until

pytestmark = PROCESS_MARKS
EMBEDDED = {"pair": "embedded", "threads": 1}


@pytest.fixture
def said() -> list[str]:
    return []


def reached(wanted: EngineSpec, said: list[str]) -> int:
    """Return the process id of the daemon that `ensure_daemon` finds or starts."""
    return int(ensure_daemon(wanted, said.append).get("/ps")["pid"])


def test_processes_and_threads_that_come_at_once_start_one(short_home: Path, said: list[str]) -> None:
    program = (
        "from localdflash.server.spawn import ensure_daemon; from localdflash.server.engine_spec import EngineSpec;"
        f"ensure_daemon(EngineSpec({EMBEDDED!r}), print).get('/ps')['pid']"
    )
    started = [begin(program=program) for _ in range(4)]
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(reached, EngineSpec(EMBEDDED), said) for _ in range(8)]
        assert len({future.result(60) for future in found}) == 1
    assert [process.wait(60) for process in started] == [0] * 4
    (one,) = [daemon for daemon in daemons(short_home) if "--log" in daemon.cmdline()]
    assert one.is_running()
    assert paths.engine_log().read_text().count("listening on") == 1


def test_the_daemon_is_detached_and_ends_when_idle(short_home: Path, said: list[str]) -> None:
    pid = reached(EngineSpec(EMBEDDED, idle=0.02), said)
    (daemon,) = daemons(short_home)
    assert os.getsid(pid) == pid
    assert (daemon.cwd(), daemon.terminal(), daemon.environ()["PYTHONSAFEPATH"]) == ("/", None, "1")
    assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)] == ["/dev/null"] * 2
    assert os.readlink(f"/proc/{pid}/fd/2") == str(paths.engine_log())
    until(lambda: not daemons(short_home))
    assert find_daemon() is None


def test_one_that_cannot_start_says_why(short_home: Path, said: list[str]) -> None:
    for _ in range(2):  # the second time the log has lines
        with pytest.raises(ModelError, match=r"no pair 'embeded'; did you mean 'embedded'\?") as caught:
            ensure_daemon(EngineSpec({"pair": "embeded"}), said.append)
        assert "localdflash:" not in str(caught.value)
    assert daemons(short_home) == []


def test_a_crash_after_the_message_does_not_hide_it() -> None:
    file = io.BytesIO(b"loading\nlocaldflash: the GPU failed; restart it\nterminate called\nframe #1: _start\n\n")
    assert spawn.last_line(file) == "the GPU failed; restart it"
    assert spawn.last_line(io.BytesIO(b"Traceback\nKeyError: 1\n")) == "KeyError: 1"
    assert spawn.last_line(io.BytesIO()) == ""


def test_a_gpu_that_ends_each_one_is_left_alone_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", GPU_ENDS_LOADING + PROGRAM)
    with pytest.raises(LocaldflashError, match="the daemon was killed by SIGABRT"):
        ensure_daemon(EngineSpec(EMBEDDED | {"backend": "auto", "device": "gpu"}), said.append)
    assert said == ["the daemon crashed on a GPU while loading; restarting ..."] * 2
    about = ensure_daemon(EngineSpec(EMBEDDED | {"backend": "auto"}), said.append).get("/ps")
    assert "no GPU with llama.cpp: it crashed the engine " in said[-1]
    assert about["device"] == "cpu"


def test_one_that_leaves_while_it_is_found_is_started_again(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    first, ready = start(), spawn._wait_until_ready
    assert reached(EngineSpec(EMBEDDED), said) == first.pid
    assert said == []

    def leaves(client: Client, waiting: Any) -> bool:
        was = ready(client, waiting)
        if first.poll() is None:
            killed(first)  # and its socket stays
        return was

    monkeypatch.setattr(spawn, "_wait_until_ready", leaves)
    assert reached(EngineSpec(EMBEDDED), said) != first.pid


def test_one_that_never_listens_is_given_up(short_home: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(spawn, "LISTEN_SECONDS", 0.3)
    with pytest.raises(LocaldflashError, match="is not accepting connections; see"):
        ensure_daemon(EngineSpec(EMBEDDED), said.append)
    assert daemons(short_home) == []
    monkeypatch.setattr(spawn, "PROGRAM", "import os; os._exit(7)")
    with pytest.raises(LocaldflashError, match=r"exited without a message; see .*engine\.log"):
        ensure_daemon(EngineSpec(EMBEDDED), said.append)


def test_one_that_does_not_respond_is_named(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr("localdflash.server.client.CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(spawn, "LISTEN_SECONDS", 0.3)
    stopped, stages = start(), list[str]()
    process = rf" \(process {stopped.pid}\)" if paths.transport() == "unix" else ""
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        for find in (find_daemon, lambda: ensure_daemon(EngineSpec(EMBEDDED), said.append, stages.append)):
            with pytest.raises(LocaldflashError, match=f"the daemon{process} does not respond; kill its process"):
                find()
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert set(stages) == {spawn.STARTING}


def test_an_idle_one_of_another_version_is_replaced(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    first = start()
    monkeypatch.setattr(spawn, "__version__", "9.9")
    second = reached(EngineSpec(EMBEDDED), said)
    assert first.wait(20) == 0
    assert second != first.pid
    assert "with version 9.9" in said[0]


def test_a_killed_starter_leaves_no_lock(short_home: Path, said: list[str]) -> None:
    program = (
        "import os, signal; from localdflash.server import spawn;"
        "spawn._spawn = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        f"spawn.ensure_daemon(spawn.EngineSpec({EMBEDDED!r}), print)"
    )
    assert begin(program=program).wait(30) == -signal.SIGKILL
    assert (short_home / "runtime" / "engine.start.lock").exists()
    assert reached(EngineSpec(EMBEDDED), said)
