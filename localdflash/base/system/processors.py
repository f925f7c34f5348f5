"""The processors that this process may use, and how busy the machine is."""

import os
import sys


def allowed() -> set[int]:
    """The logical processors that this process may run on; all of them where the system does not say."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    else:
        return set(range(os.cpu_count() or 1))


def load() -> float:
    """How many programs wanted to run at once, on average of the last minute."""
    if sys.platform == "win32":
        import psutil

        return psutil.getloadavg()[0]
    else:
        return os.getloadavg()[0]
