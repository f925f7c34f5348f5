"""Processes: ended with their children, looked up, and stopped by signals."""

import os
import subprocess
import sys

import psutil

from localdflash.base.system import process
from tests.support.daemons import until


def test_detached_process_is_ended_with_its_children() -> None:
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
    process.kill_with_children(parent.pid)  # no process is left


def test_running_processes_are_found() -> None:
    assert process.is_running(os.getpid())
    assert process.is_running(1)  # owned by another user
    assert process.is_running(10**30)  # not a process id: no process is reported
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not process.is_running(ended.pid)
