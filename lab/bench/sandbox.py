"""Run untrusted tests in a process that `jail.py` restricts.

The process gets a secret and prints it after all tests ran. A program passes if the secret comes back.
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
from localdflash.base.system.process import detached_options, kill_with_children

DEFAULT_SECONDS = 5  # limit of wall-clock time; the limit of processor time is 2 s higher
MAX_MEMORY_BYTES = 1 << 30  # limit of address space
MAX_OUTPUT_BYTES = 4096
JAIL = Path(__file__).with_name("jail.py")

Outcome = Literal["passed", "failed", "timeout"]
WEAKNESSES = {
    ("network", "none"): "the network is open",
    ("network", "module"): "the network is blocked only by removing Python's socket module",
    ("files", "none"): "your files can be read, changed and removed",
    ("processes", "limits"): "processes are restricted only by a resource limit",
}


@dataclass(frozen=True)
class SandboxResult:
    """Outcome of a program, and the method that restricted each resource."""

    outcome: Outcome
    restrictions: dict[str, str]  # resource to method


def run(program: str, seconds: float = DEFAULT_SECONDS, memory: int = MAX_MEMORY_BYTES) -> SandboxResult:
    """Run a program until it ends or times out; LocaldflashError if the sandbox does not start."""
    secret = secrets.token_hex(16).encode()
    with tempfile.TemporaryDirectory(prefix="localdflash-sandbox-", ignore_cleanup_errors=True) as folder:
        cpu_seconds = str(round(seconds) + 2)  # so that the wall clock expires first
        command = [sys.executable, "-I", str(JAIL), cpu_seconds, str(memory)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **detached_options(),
        )
        try:
            output, in_time = _exchange(process, secret + b"\n" + program.encode("utf-8", "surrogatepass"), seconds)
        finally:
            _kill(process)
    restrictions, _, reply = output.partition(b"\n")
    if not restrictions.startswith(b"{"):
        raise LocaldflashError(f"sandbox: did not start (status {process.returncode}); nothing was run")
    outcome: Outcome = "passed" if reply == secret else "failed" if in_time else "timeout"
    return SandboxResult(outcome, json.loads(restrictions))


def weaknesses(restrictions: dict[str, str]) -> list[str]:
    """Return the protections that are missing on this machine."""
    return [WEAKNESSES[item] for item in restrictions.items() if item in WEAKNESSES]


def _exchange(process: "subprocess.Popen[bytes]", program: bytes, seconds: float) -> tuple[bytes, bool]:
    """Send the program and read its output up to `MAX_OUTPUT_BYTES`; return the output, and False after a timeout."""
    assert process.stdin is not None
    assert process.stdout is not None
    end = time.monotonic() + seconds
    with suppress(BrokenPipeError):  # the process exited early; its output has the reason
        process.stdin.write(program)
        process.stdin.close()
    output, source = b"", process.stdout.fileno()
    while len(output) < MAX_OUTPUT_BYTES:
        if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
            return output, False
        if not (piece := os.read(source, MAX_OUTPUT_BYTES)):
            return output, True
        output += piece
    return output, True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process group, wait for the process and close its pipes."""
    kill_with_children(process.pid)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream and not stream.closed:
            stream.close()
