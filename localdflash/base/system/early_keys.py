"""Buffers keys that the user presses while the program starts, instead of letting the terminal echo them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL, _INPUT = 3, 0  # indices in the result of tcgetattr


@contextmanager
def keep_early_keys() -> Iterator[None]:
    """Let the terminal buffer keys without echo, then restore its settings; on Windows, do nothing."""
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
