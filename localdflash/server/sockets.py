"""Where the daemon listens: at a path for this user alone, and on TCP if that was asked for.

The name of the path tells what it is: with `.tcp` a file that holds a port and its key (see `port_file`), else a Unix
socket. The folder is 0700, either of them 0600, and a Unix socket's peer must have this process's user id. `lifetime`
is held by the only daemon; only its holder may listen at the path, so what it finds there is stale.
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
LEAVE_SECONDS = 15  # seconds that a daemon which was told to leave may take


class AlreadyRunning(LocaldflashError):
    """Another process is the daemon (exit code 1)."""


@dataclass(frozen=True)
class LocalListener:
    """A listening socket for the programs of this user. Requests need `key`, unless it is "" as for a Unix socket.

    `withdraw` lets nobody find it any more; what is connected stays so.
    """

    listener: socket.socket
    key: str
    withdraw: Callable[[], None]


@contextmanager
def lifetime(path: Path) -> Iterator[None]:
    """A context in which this process is the daemon of this path; AlreadyRunning if another process is, by whichever
    transport.

    The kernel releases it when the process dies, whatever it forked. A holder that no longer listens is about to leave:
    it is waited for.
    """
    from filelock import Timeout

    from localdflash.base.system.file_lock import process_lock

    with ExitStack() as held:
        try:
            held.enter_context(
                process_lock(lock_of(path), LEAVE_SECONDS, lambda: is_listening(path) or is_listening(other(path)))
            )
        except Timeout:
            raise AlreadyRunning(f"{path}: another daemon has it") from None
        yield


def lock_of(path: Path) -> Path:
    """Return the lock file of the one process that may listen at this path."""
    return path.with_suffix(".lock")


def other(path: Path) -> Path:
    """Where the daemon of this path would listen with the other transport."""
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
    """The address itself, or the port that the file at its path holds now, with the key. OSError if nobody listens."""
    if not address.socket or paths.transport_of(address.socket) == "unix":
        return address
    if (port := port_file.read(address.socket)) is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return replace(address, socket=None, host=port_file.LOOPBACK, port=port.number, key=port.key)


def prepare_folder(path: Path) -> None:
    """Create the folder of the socket for this user alone; LocaldflashError if it is not private."""
    paths.create_private(path.parent)
    paths.check_private(path.parent)


@contextmanager
def local(path: Path) -> Iterator[LocalListener]:
    """Return what listens at this path, gone afterwards. Only under `lifetime`: whatever is there is replaced."""
    if paths.transport_of(path) == "tcp":
        with port_file.listening(path) as (listener, port, file):
            yield LocalListener(listener, port.key, file.withdraw)
    else:
        with listening_socket(path) as listener:
            yield LocalListener(listener, "", lambda: path.unlink(missing_ok=True))


@contextmanager
def listening_socket(path: Path) -> Iterator[socket.socket]:
    """A Unix socket listening at this path, gone afterwards. Only under `lifetime`: whatever is there is replaced."""
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
    """A listening TCP socket; UsageError if the port is taken or the address is not this machine's. Port 0: any."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise UsageError(f"--host {host}: no such address; 127.0.0.1 is this machine alone") from None
    listener = socket.socket(family, kind, protocol)
    try:
        claim(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} on {host} is in use: choose another one with --port") from None
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener
