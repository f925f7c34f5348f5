"""Private engine of one process: a child that ends with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from localdflash.base.errors import UsageError
from localdflash.base.files import paths
from localdflash.server import private
from localdflash.server.address import Address
from localdflash.server.client import Client, find_daemon
from localdflash.server.engine_spec import EngineSpec
from tests.support.daemons import PROCESS_MARKS, daemons, until

pytestmark = PROCESS_MARKS
EMBEDDED = EngineSpec({"pair": "embedded", "threads": 1})
PARENT = """
import sys, time
from localdflash.base.files import paths
from localdflash.server import private
from localdflash.server.engine_spec import EngineSpec
look = lambda stage: print(stage, flush=True)
child = private.start(EngineSpec({"pair": "embedded", "threads": 1}), paths.private_socket(), look)
print("pid", child.pid, flush=True)
time.sleep(60)
"""


def test_it_serves_its_own_socket_and_leaves_nothing() -> None:
    stages: list[str] = []
    path = paths.private_socket()
    child = private.start(EMBEDDED, path, stages.append)
    try:
        client = Client(Address(path))
        assert client.get("/ps")["pair"] == "embedded"
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", body)["usage"]["completion_tokens"]
        assert find_daemon() is None
        assert path.stat().st_mode & 0o077 == 0
        assert stages[0] == "starting"
        assert os.getsid(child.pid) == child.pid
    finally:
        private.end(child, path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("stage", ["loading", "pid"])
def test_it_ends_with_a_parent_that_is_killed(short_home: Path, stage: str) -> None:
    slow = "import time; from localdflash.loading.load_pair import LoadedPair; load = LoadedPair.__init__;"
    slow += "LoadedPair.__init__ = lambda *a: (time.sleep(1), load(*a))[1];"
    from localdflash.server import spawn

    program = f"from localdflash.server import spawn; spawn.PROGRAM = {slow + spawn.PROGRAM!r}\n{PARENT}"
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    while not parent.stdout.readline().startswith(stage):
        pass
    until(lambda: daemons(short_home))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    until(lambda: not daemons(short_home), 20)


def test_it_ends_when_its_parent_is_killed_and_somebody_else_holds_the_pipe(short_home: Path) -> None:
    program = PARENT.replace("time.sleep(60)", "import os; os.fork() or os.setsid(); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    while not parent.stdout.readline().startswith("pid"):
        pass
    until(lambda: len(psutil.Process(parent.pid).children()) == 2)
    (fork,) = [child for child in psutil.Process(parent.pid).children() if "serve" not in child.cmdline()]
    parent.kill()
    try:
        until(lambda: not daemons(short_home), 20)
    finally:
        fork.kill()
        parent.communicate()


def test_a_failed_or_abandoned_start_leaves_nothing(short_home: Path) -> None:
    with pytest.raises(UsageError, match="context of 7 tokens") as caught:
        private.start(EngineSpec({"pair": "embedded", "context": 7}), paths.private_socket(), lambda _: None)
    assert "localdflash:" not in str(caught.value)
    assert daemons(short_home) == []

    def look(stage: str) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        private.start(EMBEDDED, paths.private_socket(), look)
    assert daemons(short_home) == []
