"""A private daemon: a child process that exits together with its parent."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localdflash.base.errors import EngineDisconnect
from localdflash.base.files import paths
from localdflash.server.address import Address
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.sockets import is_listening, lock_of, prepare_folder
from localdflash.server.spawn import (
    LOADING,
    POLL_SECONDS,
    READY,
    STARTING,
    OnStage,
    detached_process_options,
    exit_error,
    last_line,
    serve_command,
)

STOP_SECONDS = 1.0  # timeout for the child to exit


def start(
    spec: EngineSpec, path: Path, on_stage: OnStage, say: Callable[[str], None] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a daemon as a child that serves `path`; return the process once its pair is loaded, or raise its error.

    `on_stage` gets the stage at every poll. `say` gets the pair's notice and, on a terminal, a line at the start.
    """
    prepare_folder(path)
    if say and sys.stderr.isatty():
        say("starting the daemon ...")
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [*serve_command(spec), "--private", str(path)],
            stdin=subprocess.PIPE,  # the kernel closes it when this process ends, which stops the child
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            **detached_process_options(),
        )
        try:
            while not _is_ready(path):
                if child.poll() is not None:
                    stderr.seek(0)
                    raise exit_error(child.returncode, last_line(stderr) or "the daemon exited without a message")
                on_stage(LOADING if is_listening(path) else STARTING)
                time.sleep(POLL_SECONDS)
            if say and (notice := Client(Address(path)).get("/ps").get("notice")):
                say(notice)
        except BaseException:
            end(child, path)
            raise
        return child


@contextmanager
def private_daemon(spec: EngineSpec, say: Callable[[str], None]) -> Iterator[Client]:
    """Run a private daemon during the context, and yield its client."""
    path = paths.private_socket()
    child = start(spec, path, lambda _: None, say)
    try:
        yield Client(Address(path))
    finally:
        end(child, path)


def end(child: "subprocess.Popen[bytes]", path: Path) -> None:
    """Close the child's stdin and wait for it to exit; kill it after `STOP_SECONDS`, for example while it loads."""
    assert child.stdin
    with suppress(OSError):
        child.stdin.close()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        for file in (path, lock_of(path)):
            file.unlink(missing_ok=True)


def _is_ready(path: Path) -> bool:
    if not is_listening(path):
        return False
    try:
        return Client(Address(path)).health().get("status") == READY
    except EngineDisconnect:
        return False
