"""Processors and file descriptors that this process may use, and the load of the machine."""

import os
import sys


def allowed_processors() -> set[int]:
    """Return the logical processors that this process may run on; all of them if unknown."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    else:
        return set(range(os.cpu_count() or 1))


def load_average() -> float:
    """Return the load average of the last minute."""
    if sys.platform == "win32":
        import psutil

        return psutil.getloadavg()[0]
    else:
        return os.getloadavg()[0]


def allow_descriptors(count: int) -> None:
    """Raise this process's soft limit of file descriptors to `count`, as far as the hard limit allows."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        new_limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < new_limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
