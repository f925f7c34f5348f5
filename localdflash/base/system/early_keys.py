"""Keep keys that are pressed while the program is starting; otherwise the terminal echoes them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL, _INPUT = 3, 0  # indices in the result of tcgetattr


@contextmanager
def kept() -> Iterator[None]:
    """Return a context in which the terminal keeps keys unread; its settings are restored at the end."""
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
