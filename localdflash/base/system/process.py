"""Processes: start them detached, kill them with their children, name their signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

ENDING = (signal.SIGINT, signal.SIGTERM)  # signals that end a process
if sys.platform == "win32":
    QUIT_SIGNALS = (signal.SIGTERM, signal.SIGBREAK)  # signals that end a program on a terminal
else:
    QUIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_FAULTS = {  # Windows' exit codes of crashes, as signals
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC00000FD: "SIGSEGV",  # the stack is full
    0xC0000409: "SIGABRT",
    0x40000015: "SIGABRT",
}


def apart() -> dict[str, Any]:
    """Return the arguments of Popen for a process that the signals of this one's terminal do not reach."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    else:
        return {"start_new_session": True}


def kill_with_children(number: int) -> None:
    """Kill a process that was started `apart`, and its children except those started `apart`."""
    if sys.platform == "win32":
        import psutil

        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(number)
            for one in (*first.children(recursive=True), first):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses it for what has just ended
            os.killpg(number, signal.SIGKILL)


def is_there(number: int) -> bool:
    """Return whether a process of this number exists, of any user."""
    if sys.platform == "win32":  # where `os.kill(number, 0)` sends it Ctrl-C
        import psutil

        return psutil.pid_exists(number)
    else:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # another user's process; an impossible number
            return True
        return True


def ending_signal(code: int) -> str:
    """Return the name of the signal that ended a process, by its exit code, or ""."""
    if sys.platform == "win32":
        return _FAULTS.get(code & 0xFFFFFFFF, "")
    else:
        return signal.Signals(-code).name if code < 0 else ""


def on_ending(loop: "asyncio.AbstractEventLoop", handle: Callable[[int], None]) -> None:
    """Call `handle` on this loop with the number of each signal that ends this process."""
    for number in ENDING:
        if sys.platform == "win32":
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(handle, number))
        else:
            loop.add_signal_handler(number, handle, number)
