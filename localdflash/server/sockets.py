"""Listening sockets of the daemon: a local path that only this user can reach, and optional TCP ports.

A path with the suffix `.tcp` is a port file; any other path is a Unix socket, whose peer must have this process's user
id. The folder has mode 0700, the file or socket has mode 0600. Only the holder of `path_lock` may listen at the path,
so that holder may replace a file there.

A port file holds a port of 127.0.0.1, and a key, because every user of the machine can connect to the port. Any user
could also bind the port of a killed daemon. So the daemon keeps the file locked while it listens, and a client uses
port and key only if the file is locked. The key changes at every start.
"""

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.base.system import file_lock, owner, unix_socket
from localdflash.base.system.descriptor import BASE_FLAGS, READ
from localdflash.base.system.tcp_socket import claim
from localdflash.server.address import Address

BACKLOG = 128
EXIT_SECONDS = 15  # timeout for a stopping daemon to exit
LOOPBACK = "127.0.0.1"
MAX_FILE_BYTES = 128  # more than a port file has
LOCK_SECONDS = 2.0  # timeout of the daemon's lock: a client locks the file briefly to read it
POLL_SECONDS = 0.005
_PORT_FILE = re.compile(rb"([1-9][0-9]{0,4})\n([A-Za-z0-9_-]{43})\n")


class AlreadyRunning(LocaldflashError):
    """Another daemon is already running (exit code 1)."""


@dataclass(frozen=True)
class LocalListener:
    """Listening socket for this user's programs. `key`: for all requests, "": none. `withdraw` removes its path."""

    listener: socket.socket
    key: str
    withdraw: Callable[[], None]


@contextmanager
def path_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the process that listens at `path`; wait for a holder that exits, else raise AlreadyRunning."""
    with ExitStack() as held:
        try:
            held.enter_context(
                file_lock.process_lock(
                    lock_of(path), EXIT_SECONDS, lambda: is_listening(path) or is_listening(other_transport_path(path))
                )
            )
        except TimeoutError:
            raise AlreadyRunning(f"{path}: another daemon is using this socket") from None
        yield


def lock_of(path: Path) -> Path:
    """Return the path of the lock file for `path_lock`."""
    return path.with_suffix(".lock")


def other_transport_path(path: Path) -> Path:
    """Return the path at which the daemon listens with the other transport: `engine.tcp` for `engine.sock`."""
    return path.with_suffix(paths.SUFFIXES["unix" if paths.transport_of(path) == "tcp" else "tcp"])


def is_listening(path: Path) -> bool:
    """Return whether a process accepts connections at this path."""
    if paths.transport_of(path) == "unix":
        return unix_socket.is_listening(path)
    try:
        return read_port_file(path) is not None
    except OSError:
        return False


def resolve_port_file(address: Address) -> Address:
    """Return an address; one with a port file gets the port and key in the file. OSError if no process listens."""
    if not address.socket or paths.transport_of(address.socket) == "unix":
        return address
    if (port := read_port_file(address.socket)) is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return replace(address, socket=None, host=port.host, port=port.port, key=port.key)


def prepare_folder(path: Path) -> None:
    """Create the folder of `path` with mode 0700; LocaldflashError if other users can access an existing folder."""
    paths.create_private(path.parent)
    paths.check_private(path.parent)


@contextmanager
def listen_at(path: Path) -> Iterator[LocalListener]:
    """Listen at `path` during the context, replacing an old file. Call this only while holding `path_lock`."""
    if paths.transport_of(path) == "tcp":
        with listening_port(path) as own:
            yield own
    else:
        with listening_socket(path) as listener:
            yield LocalListener(listener, "", lambda: path.unlink(missing_ok=True))


@contextmanager
def listening_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket at `path` during the context; see `listen_at`."""
    path.unlink(missing_ok=True)
    try:
        listener = unix_socket.bind(path)
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
    with listener:
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def listening_port(path: Path) -> Iterator[LocalListener]:
    """Listen on a free TCP port during the context, and write it to the port file `path`; see `listen_at`."""
    with ExitStack() as stack:
        try:
            file = _create_locked(path)  # opened before the socket, so that a dying process closes it first
            withdraw = stack.enter_context(ExitStack())
            withdraw.callback(_close_and_remove, file, path)
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            claim(listener)
            listener.bind((LOOPBACK, 0))
            listener.listen(BACKLOG)
            key = secrets.token_urlsafe(32)
            os.write(file, f"{listener.getsockname()[1]}\n{key}\n".encode())
        except OSError as error:
            raise LocaldflashError(f"{path}: cannot listen: {error.strerror}; set {paths.HOME_VARIABLE}") from None
        try:
            yield LocalListener(listener, key, withdraw.close)
        finally:
            withdraw.close()


def _close_and_remove(file: int, path: Path) -> None:
    os.close(file)  # close first: Windows removes no open file
    with suppress(OSError):
        path.unlink()


def read_port_file(path: Path) -> Address | None:
    """Return the address in a locked port file, else None; LocaldflashError if other users can read the file."""
    file = os.open(path, READ)
    try:
        if file_lock.try_lock(file, shared=True):
            return None
        about = os.fstat(file)
        if owner.is_open_to_others(about) or not owner.is_ours(about):
            raise LocaldflashError(f"{path}: readable by other users; stop the daemon and delete the file")
        match = _PORT_FILE.fullmatch(os.read(file, MAX_FILE_BYTES))
    finally:
        os.close(file)
    return Address(host=LOOPBACK, port=int(match[1]), key=match[2].decode()) if match else None


def _create_locked(path: Path) -> int:
    """Create an empty file, lock it, and return its descriptor: only the lock holder can write its contents."""
    with suppress(FileNotFoundError, PermissionError):  # on Windows, while a client has the file open
        path.unlink()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | BASE_FLAGS, 0o600)
    end = time.monotonic() + LOCK_SECONDS
    try:
        while not file_lock.try_lock(file):
            if time.monotonic() > end:
                raise LocaldflashError(f"{path}: locked by another process; try again")
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(file)
        raise
    return file


def tcp_socket(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket (port 0: any free port); UsageError if the port is taken or `host` is not ours."""
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
