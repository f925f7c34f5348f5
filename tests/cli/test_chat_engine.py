"""`localdflash chat -p` with the daemon or a server: identical answers, also if the daemon is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.base.files import paths
from localdflash.cli.output import DAEMON_RESTARTED
from localdflash.models.config import ServerConfig
from localdflash.server import spawn
from tests.cli.conftest import SLOW_DAEMON
from tests.support import daemons

pytestmark = [pytest.mark.system, pytest.mark.transport]
SHARED = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
QUESTION = ("-p", "Write a function that adds.", "--max-tokens", 40)


@SHARED
def test_daemon_gives_the_same_answers_as_a_private_engine(short_home: Path, run: Callable[..., Any]) -> None:
    options = ("--temperature", "0.8", "--seed", "3", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01")
    here = run("chat", *QUESTION, *options, "--no-daemon", "--threads", 1)
    for _ in range(2):
        again = run("chat", *QUESTION, *options, "--threads", 1)
        assert (again.code, again.out) == (here.code, here.out)  # stderr may differ in measured numbers
    assert here.out.strip()
    assert len(daemons.daemons(short_home)) == 1


@SHARED
@pytest.mark.usefixtures("short_home")
@pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)
def test_daemon_errors_reach_the_command(fails: Callable[..., str]) -> None:
    assert "did you mean 'embedded'?" in fails(3, "chat", "-p", "x", "--pair", "embeded")
    assert "context of 7 tokens" in fails(2, "chat", "-p", "x", "--threads", 1, "--context", 7)
    elsewhere = fails(3, "chat", "-p", "x", "--threads", 1, "--drafter", "nowhere")
    assert f"{Path.cwd() / 'nowhere'}: " in elsewhere  # not below the daemon's folder
    too_long = fails(2, "chat", "--threads", 1, "--rows", "exact", "-p", "x = 1\n" * 900)  # no notice about rows first
    assert "1024" in too_long


def chat_with_slow_daemon(*arguments: object) -> "subprocess.Popen[bytes]":
    """Start a chat process whose daemon takes 0.05 s per step."""
    program = SLOW_DAEMON + daemons.PROGRAM
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, "chat", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@SHARED
def test_killed_daemon_loses_no_answer(short_home: Path, run: Callable[..., Any]) -> None:
    arguments = ("-p", "Write a function that adds.", "--max-tokens", 60, "--threads", 1)
    with chat_with_slow_daemon(*arguments) as process:
        assert process.stdout
        assert process.stderr
        begun = os.read(process.stdout.fileno(), 1)
        (daemon,) = daemons.daemons(short_home)
        daemon.kill()
        out, err = begun + process.stdout.read(), process.stderr.read().decode()
        assert process.wait(60) == 0
    assert err.startswith(f"{DAEMON_RESTARTED}\n")
    assert err.count("\n") <= 2  # the second line says that the answer was cut
    assert out.decode() == run("chat", *arguments, "--no-daemon").out
    assert [one.pid for one in daemons.daemons(short_home)] != [daemon.pid]


@SHARED
def test_ctrl_c_stops_the_request_in_the_daemon(short_home: Path) -> None:
    arguments = ("-p", "Tell me.", "--max-tokens", 600, "--temperature", 3, "--seed", 1, "--threads", 1)
    with chat_with_slow_daemon(*arguments) as process, daemons.client() as looking:
        assert process.stdout
        assert process.stderr
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, err = process.stdout.read(), process.stderr.read()
        assert process.wait(30) == 130
        assert time.monotonic() - began < 2
        assert (rest[-1:], err) == (b"\n", b"")
        daemons.until(lambda: looking.get("/ps")["running"] == 0, 2)
    assert len(daemons.daemons(short_home)) == 1


@SHARED
@pytest.mark.usefixtures("short_home")
def test_configured_server_answers(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    process = daemons.begin("--port", "0")
    assert process.stderr
    process.stderr.readline()
    url = process.stderr.readline().split()[2].rstrip(":")
    settings = SimpleNamespace(server=ServerConfig(url=f"{url}/v1", key_file=str(paths.key_file())))
    monkeypatch.setattr("localdflash.cli.chat_command.load_config", lambda: settings)
    monkeypatch.setattr(spawn, "ensure_daemon", None)
    expected = run("chat", *QUESTION, "--no-daemon", "--threads", 1)
    assert run("chat", *QUESTION) == expected
    assert "nothing" in run("chat", *QUESTION, "--pair", "nothing").err
    assert "top_k" not in run("chat", *QUESTION, "--top-k", 3).err  # localdflash's own engine takes it
    process.kill()
    process.wait(10)
    done = run("chat", *QUESTION)
    assert (done.code, done.out) == (1, "")
    assert url in done.err
    assert "Connection refused" in done.err
