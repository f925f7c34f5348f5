"""Processes: ended with their children, looked up, and stopped by signals."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from localdflash.base.system import process

FAMILY = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
)
FAMILY += "print(child.pid, flush=True); time.sleep(60)"


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(number: int) -> bool:
    return not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


def test_what_is_apart_ends_with_all_that_it_began() -> None:
    first = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, **process.apart())
    assert first.stdout
    child = int(first.stdout.readline())
    assert os.getsid(first.pid) == first.pid != os.getsid(0)
    process.kill_with_children(first.pid)
    first.communicate()
    until(lambda: gone(child))
    process.kill_with_children(first.pid)  # there is nothing left of it


def test_who_is_there() -> None:
    assert process.is_there(os.getpid())
    assert process.is_there(1)  # which this user may not ask
    assert process.is_there(10**30)  # no number of a process: nothing is claimed of it
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not process.is_there(ended.pid)
