"""Buffer keys that the user presses while the program starts, instead of letting the terminal echo them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL, _INPUT = 3, 0  # indices in the result of tcgetattr


@contextmanager
def keep_early_keys() -> Iterator[None]:
    """Turn off echo and line editing within the context, so that keys stay in the terminal's buffer; not on Windows."""
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
