"""Listening sockets of the daemon: a local path for this user only, and optional TCP ports.

A path with the suffix `.tcp` is a file that holds a port and its key (see `port_file`); any other path is a Unix
socket. The folder has mode 0700, the file or socket has mode 0600, and the peer of a Unix socket must have this
process's user id. Only the holder of `lifetime` may listen at the path, so an existing file there is stale.
"""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from localdflash.base.system.tcp_socket import claim
from localdflash.server import port_file
from localdflash.server.address import Address

BACKLOG = 128
LEAVE_SECONDS = 15  # timeout for a stopping daemon to exit


class AlreadyRunning(LocaldflashError):
    """Error: another daemon is already running (exit code 1)."""


@dataclass(frozen=True)
class LocalListener:
    """Listening socket for this user's programs, the key that requests need ("": none), and what removes its path."""

    listener: socket.socket
    key: str
    withdraw: Callable[[], None]


@contextmanager
def lifetime(path: Path) -> Iterator[None]:
    """Hold the lock that makes this process the only daemon of `path`; raise AlreadyRunning if another daemon runs.

    The lock covers both transports. The kernel releases the lock when the process dies, even if forked children live
    on. If the holder no longer listens, it is about to exit, and this context waits for it.
    """
    from filelock import Timeout

    from localdflash.base.system.file_lock import process_lock

    with ExitStack() as held:
        try:
            held.enter_context(
                process_lock(lock_of(path), LEAVE_SECONDS, lambda: is_listening(path) or is_listening(other(path)))
            )
        except Timeout:
            raise AlreadyRunning(f"{path}: another daemon is using this socket") from None
        yield


def lock_of(path: Path) -> Path:
    """Return the lock file of the one process that may listen at this path."""
    return path.with_suffix(".lock")


def other(path: Path) -> Path:
    """Return the path at which the daemon of `path` would listen with the other transport."""
    return path.with_suffix(paths.SUFFIXES["unix" if paths.transport_of(path) == "tcp" else "tcp"])


def is_listening(path: Path) -> bool:
    """Return whether a process accepts connections at this path."""
    if paths.transport_of(path) == "unix":
        return unix_socket.is_listening(path)
    try:
        return port_file.read(path) is not None
    except OSError:
        return False


def located(address: Address) -> Address:
    """Return the address, with port and key read from its port file if it has one; OSError if nothing listens."""
    if not address.socket or paths.transport_of(address.socket) == "unix":
        return address
    if (port := port_file.read(address.socket)) is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return replace(address, socket=None, host=port_file.LOOPBACK, port=port.number, key=port.key)


def prepare_folder(path: Path) -> None:
    """Create the folder of the socket with mode 0700; raise LocaldflashError if an existing folder is not private."""
    paths.create_private(path.parent)
    paths.check_private(path.parent)


@contextmanager
def local(path: Path) -> Iterator[LocalListener]:
    """Listen at `path` during the context, replacing a stale file. Call only while holding `lifetime`."""
    if paths.transport_of(path) == "tcp":
        with port_file.listening(path) as (listener, port, withdraw):
            yield LocalListener(listener, port.key, withdraw)
    else:
        with listening_socket(path) as listener:
            yield LocalListener(listener, "", lambda: path.unlink(missing_ok=True))


@contextmanager
def listening_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket at `path` during the context, replacing a stale one. Call only under `lifetime`."""
    path.unlink(missing_ok=True)
    try:
        listener = unix_socket.bound(path)
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
    with listener:
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def tcp_socket(host: str, port: int) -> socket.socket:
    """Listen on TCP (port 0: any free port); raise UsageError if the port is taken or the address is not local."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise UsageError(
            f"--host {host}: not an address of this machine; use 127.0.0.1 for local access only"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        claim(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} on {host} is in use; choose another port with --port") from None
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener
