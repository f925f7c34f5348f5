"""Unix sockets, and which user is at their other end. On Windows, where Python has none, opening one raises OSError."""

import errno
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

IS_SUPPORTED = sys.platform != "win32"

if sys.platform == "win32":

    def bind(path: Path, timeout: float = 0.0) -> socket.socket:
        """Raise OSError."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    async def open_connection(path: Path) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Raise OSError."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    def is_listening(path: Path | socket.socket) -> bool:
        """Return False."""
        return False

    def peer_pid(connection: socket.socket) -> int:
        """Raise OSError."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    connect, is_from_other_user = bind, is_listening

else:
    import os
    import struct

    def bind(path: Path) -> socket.socket:
        """Return a socket bound to an unused path. The path has mode 0600 from the start."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    def connect(path: Path, timeout: float) -> socket.socket:
        """Connect within `timeout` seconds, which stays the timeout of the returned connection."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            connection.connect(str(path))
        except OSError:
            connection.close()
            raise
        return connection

    async def open_connection(path: Path) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Return a connection on an event loop."""
        import asyncio

        return await asyncio.open_unix_connection(path)

    def is_listening(path: Path) -> bool:
        """Return whether a process accepts connections at this path."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(path)) == 0

    def is_from_other_user(connection: socket.socket) -> bool:
        """Return whether this is a Unix socket, and the process at its other end runs as another user."""
        return connection.family == socket.AF_UNIX and peer_uid(connection) != os.getuid()

    def peer_uid(connection: socket.socket) -> int:
        """Return the user id of the process at the other end of a Unix socket."""
        if sys.platform == "darwin":
            local, peer_credentials = 0, 1  # SOL_LOCAL, LOCAL_PEERCRED; struct xucred begins with version and uid
            (_, uid) = struct.unpack_from("=II", connection.getsockopt(local, peer_credentials, 76))
        else:
            _, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid)

    def peer_pid(connection: socket.socket) -> int:
        """Return the id of the process at the other end of a Unix socket."""
        if sys.platform == "darwin":
            local, peer_pid_option = 0, 2  # SOL_LOCAL, LOCAL_PEERPID
            pid = connection.getsockopt(local, peer_pid_option)
        else:
            pid, _, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)
