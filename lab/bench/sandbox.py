"""Run untrusted tests in a process that `jail.py` restricts.

A program has passed when the process reveals a secret that it is given, which it does only after the tests ran to their
end.
"""

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localdflash.base.errors import LocaldflashError
from localdflash.base.system.process import apart, kill_with_children

SECONDS = 5  # of wall-clock time, and of processor time
MEMORY = 1 << 30  # bytes of address space
MOST = 4096  # bytes that are read of what it tells
JAIL = Path(__file__).with_name("jail.py")

Outcome = Literal["passed", "failed", "timeout"]
NOT_SHUT = {
    ("network", "none"): "the network is open",
    ("network", "module"): "the network is shut off by taking the socket module away only",
    ("files", "none"): "your files can be read, changed and removed",
    ("processes", "limits"): "processes are held back by a limit only",
}


@dataclass(frozen=True)
class SandboxResult:
    """Result of a program, and how limits, network, files and processes were restricted."""

    outcome: Outcome
    shut: dict[str, str]


def run(program: str, seconds: float = SECONDS, memory: int = MEMORY) -> SandboxResult:
    """Run a program until it ends or times out; LocaldflashError if it cannot be restricted."""
    secret = secrets.token_hex(16).encode()
    with tempfile.TemporaryDirectory(prefix="localdflash-sandbox-", ignore_cleanup_errors=True) as folder:
        processor = str(round(seconds) + 2)  # seconds of its time: the clock, which is looked at here, comes first
        command = [sys.executable, "-I", str(JAIL), processor, str(memory)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **apart(),
        )
        try:
            told, in_time = _talk(process, secret + b"\n" + program.encode("utf-8", "surrogatepass"), seconds)
        finally:
            _kill(process)
    first, _, rest = told.partition(b"\n")
    if not first.startswith(b"{"):
        raise LocaldflashError(f"the sandbox does not start (status {process.returncode}): nothing was run")
    outcome: Outcome = "passed" if rest == secret else "failed" if in_time else "timeout"
    return SandboxResult(outcome, json.loads(first))


def weaknesses(shut: dict[str, str]) -> list[str]:
    """Return the protections that are missing on this machine."""
    return [NOT_SHUT[found] for found in shut.items() if found in NOT_SHUT]


def _talk(process: "subprocess.Popen[bytes]", program: bytes, seconds: float) -> tuple[bytes, bool]:
    """Send the program and read at most `MOST` bytes of output; return the output and whether it ended in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    end = time.monotonic() + seconds
    with suppress(BrokenPipeError):  # it ended before; what it told says why
        process.stdin.write(program)
        process.stdin.close()
    told, source = b"", process.stdout.fileno()
    while len(told) < MOST:
        if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
            return told, False
        if not (piece := os.read(source, MOST)):
            return told, True
        told += piece
    return told, True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and all others in its group."""
    kill_with_children(process.pid)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream and not stream.closed:
            stream.close()
