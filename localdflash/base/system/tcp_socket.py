"""TCP sockets with an exclusive port."""

import socket
import sys


def claim(listener: socket.socket) -> None:
    """Prepare a socket before `bind`: a recently used port is accepted, and no other program can bind it too."""
    if sys.platform == "win32":  # there SO_REUSEADDR would let other programs bind the port as well
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
