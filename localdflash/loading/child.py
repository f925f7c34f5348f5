"""Run a program that may crash or hang in a child process, with a time limit and progress reports.

The child writes lines of JSON to stdout; the last line has the key `kind`. The child exits when its parent does.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from localdflash.base.system.process import detached_options, on_parent_exit
from localdflash.models.load_options import Options

MAX_STDERR_BYTES = 4096  # read from the end of the child's stderr
POLL_SECONDS = 0.1
NOT_SENT = frozenset({"progress", "compiling", "costs", "can_evict"})  # options of this process only
Report = Mapping[str, Any]


class ChildCancellation(Exception):
    """Raised after a child was killed because its result is no longer needed."""


@dataclass(frozen=True)
class ChildExit:
    """Exit of a child: its last report, if it wrote one, its exit code, and the last line of its stderr."""

    report: Report | None
    code: int
    is_timeout: bool
    stderr_line: str


def run(
    program: str,
    options: Options,
    limit: float,
    on_report: Callable[[Report], None],
    renewed: bool = False,
    cancelled: threading.Event | None = None,
) -> ChildExit:
    """Run a Python program with these options for at most `limit` seconds; OSError if no process can be started.

    With `renewed` every report restarts the time limit. Progress goes to the callbacks in `options`, other reports to
    `on_report`. Setting `cancelled` kills the child and raises ChildCancellation.
    """
    child_options = {name: value for name, value in vars(options).items() if name not in NOT_SENT}
    command = [sys.executable, "-P", "-c", program, json.dumps(child_options)]
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, **detached_options()
        ) as child:
            deadline, timed_out, exited = time.monotonic() + limit, threading.Event(), threading.Event()

            def watch() -> None:
                while not exited.wait(POLL_SECONDS):
                    if time.monotonic() > deadline:
                        timed_out.set()
                    if timed_out.is_set() or (cancelled and cancelled.is_set()):
                        child.kill()
                        return

            def renew() -> None:
                nonlocal deadline
                deadline = time.monotonic() + limit

            threading.Thread(target=watch, daemon=True).start()
            try:
                report = _read_reports(child.stdout, options, on_report, renew if renewed else lambda: None)
                child.wait()
            finally:
                exited.set()
                child.kill()
        if cancelled and cancelled.is_set():
            raise ChildCancellation
        return ChildExit(report, child.returncode, timed_out.is_set(), _last_line(stderr))


def begin() -> tuple[Options, Callable[..., None]]:
    """Set up the child; return its options and a function that writes a report. Other output goes to stderr."""
    on_parent_exit(lambda: os._exit(1))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # C libraries may print

    def report(**fields: object) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    options = Options(
        **json.loads(sys.argv[1]),
        progress=lambda done, total: report(done=done, total=total),
        compiling=lambda compiled, kernels: report(compiled=compiled, kernels=kernels),
    )
    return options, report


def _read_reports(
    lines: Iterable[bytes] | None, options: Options, on_report: Callable[[Report], None], renew: Callable[[], None]
) -> Report | None:
    """Return the child's last report, or None if the child ended before it; call `renew` for each line."""
    for line in lines or ():
        renew()
        try:
            report = json.loads(line)
        except ValueError:  # the child died while it wrote the line
            return None
        if "kind" in report:
            return dict(report)
        if "done" in report:
            if options.progress:
                options.progress(report["done"], report["total"])
        elif "kernels" in report:
            if options.compiling:
                options.compiling(report["compiled"], report["kernels"])
        else:
            on_report(report)
    return None


def _last_line(stderr: IO[bytes]) -> str:
    """Return the line of a failed ggml assertion, else the last line of stderr, in printable characters."""
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(stderr.tell() - MAX_STDERR_BYTES, 0))
    lines = [line.strip() for line in stderr.read().decode("utf-8", "replace").splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if "GGML_ASSERT" in line), lines[-1] if lines else "no output")
    return "".join(character for character in line if character.isprintable())[:200]
