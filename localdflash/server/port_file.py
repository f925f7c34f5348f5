"""Port file: the port number and key of the local listener, in a file that only the user can read.

Any user of the machine can connect to a port, so every request needs the key, which changes at every start. Any user
can also bind the port of a killed engine. Therefore the engine locks the file as long as it holds the port, and a
client reads port and key only from a locked file.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.base.system import file_lock, owner, tcp_socket
from localdflash.base.system.descriptor import PLAIN, READ

LOOPBACK = "127.0.0.1"
BACKLOG = 128
MAX_FILE_BYTES = 128
LOCK_SECONDS = 2.0  # timeout for clients that are reading the file
POLL_SECONDS = 0.005
_CONTENT = re.compile(rb"([1-9][0-9]{0,4})\n([A-Za-z0-9_-]{43})\n")


class Port(NamedTuple):
    """Port of 127.0.0.1 with the key that every request needs."""

    number: int
    key: str


@contextmanager
def listening(path: Path) -> Iterator[tuple[socket.socket, Port, Callable[[], None]]]:
    """Listen on a free port and publish it at `path` until the callable is called. Needs `lifetime`."""
    with ExitStack() as stack:
        try:
            file = _locked(path)  # its descriptor is the older one, which the end of a process closes first
            withdraw = stack.enter_context(ExitStack())
            withdraw.callback(_remove, file, path)
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            tcp_socket.claim(listener)
            listener.bind((LOOPBACK, 0))
            listener.listen(BACKLOG)
            port = Port(listener.getsockname()[1], secrets.token_urlsafe(32))
            os.write(file, f"{port.number}\n{port.key}\n".encode())
        except OSError as error:
            raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
        try:
            yield listener, port, withdraw.close
        finally:
            withdraw.close()


def _remove(file: int, path: Path) -> None:
    os.close(file)  # first: Windows removes no file that is open
    with suppress(OSError):
        path.unlink()


def read(path: Path) -> Port | None:
    """Return the port that the lock's holder published, if any; LocaldflashError if other users can read the file."""
    file = os.open(path, READ)
    try:
        if file_lock.take(file, shared=True):
            return None
        about = os.fstat(file)
        if owner.is_open_to_others(about) or not owner.is_ours(about):
            raise LocaldflashError(f"{path}: readable by other users; stop the engine and delete the file")
        found = _CONTENT.fullmatch(os.read(file, MAX_FILE_BYTES))
    finally:
        os.close(file)
    return Port(int(found[1]), found[2].decode()) if found else None


def _locked(path: Path) -> int:
    """Create and lock an empty file, so that only the lock holder can have written its contents."""
    with suppress(FileNotFoundError, PermissionError):  # Windows: a client has the file open
        path.unlink()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | PLAIN, 0o600)
    end = time.monotonic() + LOCK_SECONDS
    try:
        while not file_lock.take(file):
            if time.monotonic() > end:
                raise LocaldflashError(f"{path}: locked by another process; try again")
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(file)
        raise
    return file
