"""Start processes detached, kill them with their children, and handle and name signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # ask a daemon to end
if sys.platform == "win32":
    QUIT_SIGNALS = (signal.SIGTERM, signal.SIGBREAK)  # tell a program that its terminal is gone, or to end
else:
    QUIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_FAULTS = {  # signal on other systems by the exit code of a crash on Windows
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC00000FD: "SIGSEGV",  # stack overflow
    0xC0000409: "SIGABRT",
    0x40000015: "SIGABRT",
}


def detached_options() -> dict[str, Any]:
    """Return arguments of Popen that keep the terminal's signals from reaching the new process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    else:
        return {"start_new_session": True}


def kill_with_children(pid: int) -> None:
    """Kill a process that was started with `detached_options`, and its children that are not detached."""
    if sys.platform == "win32":
        import psutil

        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            for process in (*parent.children(recursive=True), parent):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted if the process has just ended
            os.killpg(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process with this id exists, of any user."""
    if sys.platform == "win32":  # here `os.kill(pid, 0)` would send Ctrl-C
        import psutil

        return psutil.pid_exists(pid)
    else:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # another user's process; an impossible id
            return True
        return True


def ending_signal(code: int) -> str:
    """Return the name of the signal that ended a process with this exit code; "" if none did."""
    if sys.platform == "win32":
        return _FAULTS.get(code & 0xFFFFFFFF, "")
    else:
        return signal.Signals(-code).name if code < 0 else ""


def on_end_signal(loop: "asyncio.AbstractEventLoop", handle: Callable[[int], None]) -> None:
    """Call `handle` on this loop with the number of each of `END_SIGNALS` that this process receives."""
    for signum in END_SIGNALS:
        if sys.platform == "win32":
            signal.signal(signum, lambda signum, _: loop.call_soon_threadsafe(handle, signum))
        else:
            loop.add_signal_handler(signum, handle, signum)


def on_parent_exit(handle: Callable[[], object]) -> None:
    """Call `handle` in a new thread when stdin is closed; only the parent process holds its other end."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        handle()

    threading.Thread(target=wait, daemon=True).start()
