"""Processes: ended with their children, looked up, and stopped by signals."""

import os
import subprocess
import sys

import psutil

from localdflash.base.system import process
from tests.support.daemons import until


def test_what_is_apart_ends_with_all_that_it_began() -> None:
    program = "import subprocess, time; child = subprocess.Popen(['sleep', '60'])\n"
    program += "print(child.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, **process.detached_options()
    )
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    assert os.getsid(parent.pid) == parent.pid != os.getsid(0)
    process.kill_with_children(parent.pid)
    parent.communicate()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    process.kill_with_children(parent.pid)  # there is nothing left of it


def test_who_is_there() -> None:
    assert process.is_running(os.getpid())
    assert process.is_running(1)  # which this user may not ask
    assert process.is_running(10**30)  # no number of a process: nothing is claimed of it
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not process.is_running(ended.pid)
