"""The daemon as a process of its own: who may reach it, that there is one, and what ends it."""

import os
import signal
import stat
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.server.client import find
from tests.support.daemons import (
    DROPPED_SOCKET,
    LONG,
    PROGRAM,
    SLOW,
    begin,
    client,
    is_ready,
    killed,
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


# Who may reach it


def test_only_the_user_may_reach_it() -> None:
    start()
    path = paths.engine_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with client() as found:
        assert found.get("/ps")["pair"] == "embedded"


@unix_only
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


@unix_only
@pytest.mark.parametrize("excess", [0, 1, 200])
def test_a_path_that_is_too_long_for_a_socket(excess: int, short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = paths.SOCKET_LIMIT - len(f"{short_home}//runtime/engine.sock")
    home = short_home / ("x" * min(room, 200)) / ("y" * excess)
    monkeypatch.setenv("LOCALDFLASH_HOME", str(home))
    with pytest.raises(UsageError, match=rf"must be shorter than {paths.SOCKET_LIMIT}: set LOCALDFLASH_HOME"):
        paths.engine_socket()
    code, lines = said(begin())
    assert (code, len(lines)) == (2, 1)


@unix_only
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


def test_what_one_that_was_killed_left_is_replaced() -> None:
    killed(start())
    assert paths.engine_socket().exists()
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
        first.wait(2)  # its lock is free, and only Python is left to end; its answer would go on for longer
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
    slow_to_load = "import time; from localdflash.loading.load_pair import LoadedPair; load = LoadedPair.__init__\n"
    slow_to_load += "LoadedPair.__init__ = lambda *a: (time.sleep(3), load(*a))[1]\n"
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
        "from localdflash.engine.host_pair import HostPair; from localdflash.base.errors import DeviceFailed\n"
        "def step(*_): raise DeviceFailed('CUDA error 700')\n"
        "HostPair.step = step\n"
    )
    process = start(program=broken + PROGRAM)
    with client() as talking, pytest.raises(LocaldflashError):
        list(talking.stream("/v1/chat/completions", {**CHAT, **LONG}))
    code, lines = said(process)
    assert code == 5
    assert "start it again" in lines[-1]
