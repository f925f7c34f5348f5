"""The terminal of a program that still starts."""

import os
import pty
import sys
import termios

import pytest

from localdflash.base.system.early_keys import kept


def test_keys_are_as_they_were_pressed_and_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    try:
        with os.fdopen(slave) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            before = termios.tcgetattr(slave)
            with kept():
                os.write(master, b"hi\r")
                assert os.read(slave, 10) == b"hi\r"
                os.set_blocking(master, False)
                with pytest.raises(BlockingIOError):
                    os.read(master, 10)
            assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
