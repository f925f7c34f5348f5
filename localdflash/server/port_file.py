"""A port of this machine for its user's own programs: the number and a key, in a file that only the user can read.

Any user of the machine can connect to a port, so every request needs the key, which is new at every start. Any user can
also take a port that is free again, that of an engine that was killed for example. So the engine holds a lock on the
file for no longer than its port, and a client takes number and key from a file that is locked only.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.base.system import file_lock, owner, tcp_socket
from localdflash.base.system.descriptor import PLAIN, READ

LOOPBACK = "127.0.0.1"
BACKLOG = 128
MAX_FILE_BYTES = 128  # bytes
LOCK_SECONDS = 2.0  # seconds for clients that are looking at the file just now
POLL_SECONDS = 0.005
_CONTENT = re.compile(rb"([1-9][0-9]{0,4})\n([A-Za-z0-9_-]{43})\n")


class Port(NamedTuple):
    """A port of 127.0.0.1, and the key that every request to it needs."""

    number: int
    key: str


class PortFile:
    """The file of a port of this process, locked from the beginning, until it is withdrawn."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, _locked(path)

    def write(self, port: Port) -> None:
        """Let the port be found, on which this process listens."""
        os.write(self._file, f"{port.number}\n{port.key}\n".encode())

    def withdraw(self) -> None:
        """Let nobody find the port any more."""
        if self._file >= 0:
            os.close(self._file)  # first: Windows removes no file that is open
            self._file = -1
            with suppress(OSError):
                self._path.unlink()


@contextmanager
def listening(path: Path) -> Iterator[tuple[socket.socket, Port, PortFile]]:
    """Return a listening socket and its file. Only under `sockets.lifetime`: whatever is at the path is replaced."""
    with ExitStack() as stack:
        try:
            file = PortFile(path)  # its descriptor is the older one, which the end of a process closes first
            stack.callback(file.withdraw)
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            tcp_socket.claim(listener)
            listener.bind((LOOPBACK, 0))
            listener.listen(BACKLOG)
            port = Port(listener.getsockname()[1], secrets.token_urlsafe(32))
            file.write(port)
        except OSError as error:
            raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
        try:
            yield listener, port, file
        finally:
            file.withdraw()


def read(path: Path) -> Port | None:
    """Return the port of the process that has the file locked; None if there is none, or it is not written yet.

    OSError if there is no file; LocaldflashError if others may read it.
    """
    file = os.open(path, READ)
    try:
        if file_lock.take(file, shared=True):
            return None
        about = os.fstat(file)
        if owner.is_open_to_others(about) or not owner.is_ours(about):
            raise LocaldflashError(f"{path}: others may read this key: stop the engine, and remove the file")
        found = _CONTENT.fullmatch(os.read(file, MAX_FILE_BYTES))
    finally:
        os.close(file)
    return Port(int(found[1]), found[2].decode()) if found else None


def _locked(path: Path) -> int:
    """Return a new file, locked while it is empty: what is in it was written by whoever has it locked."""
    with suppress(FileNotFoundError, PermissionError):  # Windows: a client is looking at it
        path.unlink()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | PLAIN, 0o600)
    end = time.monotonic() + LOCK_SECONDS
    try:
        while not file_lock.take(file):
            if time.monotonic() > end:
                raise LocaldflashError(f"{path}: another process keeps it locked")
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(file)
        raise
    return file
