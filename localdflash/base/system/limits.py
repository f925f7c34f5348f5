"""Processors, descriptors and memory of this process."""

import os
import re
import sys
from pathlib import Path


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


def allow_descriptors(most: int) -> None:
    """Raise this process's soft limit of descriptors up to `most`, as far as the hard limit allows."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    elif sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    else:  # `ru_maxrss` is never less than what the process had that began this one
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(peak) * 1024
