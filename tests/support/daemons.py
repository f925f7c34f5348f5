"""Daemons for tests, with a temporary home whose socket path is short."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from localdflash.lab.scripts.support.bench_daemon import PROGRAM, client, is_ready, until
from localdflash.server.address import Address
from localdflash.server.sockets import resolve_port_file

__all__ = ["PROGRAM", "client", "is_ready", "until"]  # re-exported for tests

BY_TCP = os.environ.get(paths.TRANSPORT_VARIABLE) == "tcp"  # as `make test-tcp` has it
unix_only = pytest.mark.skipif(BY_TCP or sys.platform == "win32", reason="is about Unix sockets")
SLOW = (
    "import time; from localdflash.engine.host_pair import HostPair;"
    "step = HostPair.step; HostPair.step = lambda *a: (time.sleep(0.05), step(*a))[1];"
)
ONE_PAIR = (  # a machine whose memory holds one pair
    "import gc, weakref; from localdflash.server import worker; from localdflash.base.errors import OutOfMemory;"
    "real, held = worker.LoadedPair, weakref.WeakSet()\n"
    "def load(options):\n"
    "    gc.collect()\n"
    "    if held: raise OutOfMemory('a context of 1024 tokens needs 9.00 GB, 1.00 GB of memory are free')\n"
    "    held.add(loaded := real(options))\n"
    "    return loaded\n"
    "worker.LoadedPair = load\n"
)
_GPU = (  # a machine with a GPU: what is loaded on it is on the processor, whose first model it is, under the watch
    "import os; from contextlib import ExitStack; from dataclasses import replace;"
    "from localdflash.loading import automatic; from localdflash.base.machine import gpu_watch;"
    "automatic.gpu_is_there = lambda: True; real = automatic.load_on\n"
    "def load_on(backend, files, options):\n"
    "    if options.device != 'gpu': return real(backend, files, options)\n"
    "    stack = ExitStack(); flag = gpu_watch.watch(stack)\n"
    "    with flag: return on_gpu(files, options, flag)\n"
    "automatic.load_on = load_on\n"
)
GPU_ENDS_LOADING = _GPU + "def on_gpu(*_): os.abort()\n"
GPU_ENDS_STEPS = _GPU + (
    "def on_gpu(files, options, flag):\n"
    "    running = real('llama.cpp', files, replace(options, device='cpu'))\n"
    "    step, taken = running.pair.step, []\n"
    "    def steps(*arguments):\n"
    "        taken.append(1)\n"
    "        with flag: return step(*arguments) if len(taken) < 4 else os.abort()\n"
    "    running.pair.step = steps\n"
    "    return replace(running, device='gpu')\n"
)
# httpcore leaves the socket of a refused connection to the garbage collector.
DROPPED_SOCKET = r"ignore:(?s).*unclosed <socket|Exception ignored in. <socket"
PROCESS_MARKS = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
LONG = {"stream": True, "max_tokens": 600, "temperature": 3.0, "seed": 1}  # an answer of half a minute, when slow


_begun: list["subprocess.Popen[str]"] = []


@contextmanager
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set LOCALDFLASH_HOME to a folder under /tmp; at the end, kill all processes that use it."""
    folder = Path(tempfile.mkdtemp(prefix="ldf", dir="/tmp"))
    monkeypatch.setenv("LOCALDFLASH_HOME", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        yield folder
    finally:
        for process in daemons(folder):
            process.kill()
            process.wait(10)
        for begun in _begun:
            begun.kill()
            begun.communicate()
        _begun.clear()
        shutil.rmtree(folder)


def daemons(folder: Path) -> list[psutil.Process]:
    """Return the daemons that run with this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if "serve" in process.cmdline() and process.environ().get("LOCALDFLASH_HOME") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def connect() -> socket.socket:
    """Return a bare connection to the daemon."""
    address = resolve_port_file(Address(paths.daemon_socket()))
    if address.socket:
        return unix_socket.connect(address.socket, 5)
    return socket.create_connection((address.host, address.port), 5)


def begin(*arguments: str, program: str = PROGRAM) -> "subprocess.Popen[str]":
    """Start `localdflash serve` on one thread."""
    command = [sys.executable, "-P", "-c", program, "serve", "--threads", "1", *arguments]
    _begun.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return _begun[-1]


def start(*arguments: str, program: str = PROGRAM) -> "subprocess.Popen[str]":
    """Start `localdflash serve`; return when its pair is loaded or the process has ended."""
    process = begin(*arguments, program=program)
    until(lambda: process.poll() is not None or is_ready())
    return process


def killed(process: "subprocess.Popen[str]") -> None:
    """Kill a process with SIGKILL and wait for its end."""
    process.kill()
    process.wait(10)


def said(process: "subprocess.Popen[str]", seconds: float = 30) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a daemon."""
    _, err = process.communicate(timeout=seconds)
    return process.returncode, err.splitlines()
