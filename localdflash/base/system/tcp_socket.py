"""Sockets that listen on a port which is theirs alone."""

import socket
import sys


def claim(listener: socket.socket) -> None:
    """Before `bind`: the port may have been used lately, and nobody else may bind it meanwhile."""
    if sys.platform == "win32":  # where SO_REUSEADDR lets any program take the port as well
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
