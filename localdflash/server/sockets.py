"""Where the daemon listens: a Unix socket for this user alone, and TCP if that was asked for.

The folder of the Unix socket is 0700, the socket 0600, and every connection's peer must have this process's user id.
`lifetime` is held by the only daemon; only its holder may bind the path, so what it finds there is stale.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import Timeout

from localdflash.errors import LocaldflashError, UsageError
from localdflash.files import paths
from localdflash.files.process_lock import process_lock

BACKLOG = 128
PATIENCE = 15  # seconds that a daemon which was told to leave may take


class AlreadyRunning(LocaldflashError):
    """Another process is the daemon (exit code 1)."""


@contextmanager
def lifetime(path: Path) -> Iterator[None]:
    """A context in which this process is the daemon of this socket path; AlreadyRunning if another process is.

    The kernel releases it when the process dies, whatever it forked. A holder that no longer listens is about to leave:
    it is waited for.
    """
    with ExitStack() as held:
        try:
            held.enter_context(process_lock(lock_of(path), PATIENCE, lambda: is_listening(path)))
        except Timeout:
            raise AlreadyRunning(f"{path}: another daemon has it") from None
        yield


def lock_of(path: Path) -> Path:
    """The lock file of the one process that may listen at this path."""
    return path.with_suffix(".lock")


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections at this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def prepare_folder(path: Path) -> None:
    """Create the folder of the socket for this user alone; LocaldflashError if it is not private."""
    paths.create_private(path.parent)
    paths.check_private(path.parent)


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """A listening socket at this path, removed afterwards. Only under `lifetime`: whatever is there is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # never open to others, not even before a chmod
    try:
        listener.bind(str(path))
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
    finally:
        os.umask(before)
    with listener:
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def tcp_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket; UsageError if the port is taken or the address is not this machine's. Port 0: any."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise UsageError(f"--host {host}: no such address; 127.0.0.1 is this machine alone") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} on {host} is in use: choose another one with --port") from None
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket."""
    if sys.platform == "darwin":
        local, peer_credentials = 0, 1  # SOL_LOCAL, LOCAL_PEERCRED; struct xucred begins with version and uid
        (_, uid) = struct.unpack_from("=II", connection.getsockopt(local, peer_credentials, 76))
        return int(uid)
    _, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
