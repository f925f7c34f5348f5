"""`localdflash chat` line by line on a terminal, and Ctrl-C in it and in `chat -p`."""

import signal
import subprocess
import sys
import time
from contextlib import closing, suppress

import pytest

from localdflash.cli.interrupt import Interrupt
from tests.cli.conftest import SLOW_DAEMON
from tests.support import daemons
from tests.support.terminals import PROGRAM, Terminal

SLOW_PROGRAM = (*PROGRAM[:3], SLOW_DAEMON + daemons.PROGRAM)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pseudo-terminals")


@POSIX
def test_first_interrupt_is_recorded_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.system
@POSIX
def test_ctrl_c_stops_an_answer_and_then_quits(tiny: tuple[str, ...]) -> None:
    long = ("--no-draft", "--max-tokens", "900", "--temperature", "3", "--seed", "1")  # about a minute
    with closing(Terminal("chat", "--no-daemon", *tiny, *long, program=SLOW_PROGRAM)) as screen:
        assert b"small model" not in screen.expect(b"> ")
        screen.type(b"Tell me everything.\n")
        screen.expect(b"everything.\r\n")
        time.sleep(0.5)  # the answer has started
        screen.process.send_signal(signal.SIGINT)
        assert b" per verify step]" in screen.expect(b"]\r\n> ")
        interrupt_until_exit(screen.process)


def interrupt_until_exit(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT until the process ends: Python drops a signal that arrives during a garbage collection."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            assert process.wait(10) == 0
            return
    raise AssertionError("the program does not end")
