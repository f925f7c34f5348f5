"""Keeps keys pressed while the program is starting for the program; otherwise the terminal echoes them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL, _INPUT = 3, 0  # indices in the result of tcgetattr


@contextmanager
def keep_early_keys() -> Iterator[None]:
    """Return a context in which the terminal buffers keys without echo; its settings are restored afterwards."""
    if sys.platform == "win32":
        yield
    else:
        import termios

        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        now = termios.tcgetattr(terminal)
        now[_INPUT] &= ~termios.ICRNL
        now[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(terminal, termios.TCSANOW, now)
        try:
            yield
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
