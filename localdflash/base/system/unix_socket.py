"""Unix sockets, and who is at their other end. Python knows none on Windows: there nothing listens at any path."""

import errno
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

THERE = sys.platform != "win32"

if sys.platform == "win32":

    def bound(path: Path) -> socket.socket:
        """OSError: there are none."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    def connected(path: Path, timeout: float) -> socket.socket:
        """OSError: there are none."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    async def opened(path: Path) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """OSError: there are none."""
        raise OSError(errno.EAFNOSUPPORT, "there are no Unix sockets here")

    def is_listening(path: Path) -> bool:
        """Nothing does."""
        return False

    def is_of_somebody_else(connection: socket.socket) -> bool:
        """No other end of a Unix socket is."""
        return False

else:
    import os
    import struct

    def bound(path: Path) -> socket.socket:
        """Return a socket at a path where nothing is, of mode 0600; OSError if that cannot be."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # never open to others, not even before a chmod
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    def connected(path: Path, timeout: float) -> socket.socket:
        """Return a connection, made within so many seconds; OSError if that cannot be."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            connection.connect(str(path))
        except OSError:
            connection.close()
            raise
        return connection

    async def opened(path: Path) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """The same on an event loop."""
        import asyncio

        return await asyncio.open_unix_connection(path)

    def is_listening(path: Path) -> bool:
        """Return whether a process accepts connections at this path."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(path)) == 0

    def is_of_somebody_else(connection: socket.socket) -> bool:
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
