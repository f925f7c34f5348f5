"""Physical cores that this process may use. A second thread on a core would only share its multipliers."""

import os
import sys
from functools import cache
from math import ceil
from pathlib import Path

from localdflash.base.machine import cgroups
from localdflash.base.system import limits

TOPOLOGY = Path("/sys/devices/system/cpu")


@cache
def physical_cores() -> list[int]:
    """Return one logical processor per physical core that this process may run on, at least one."""
    return _linux_cores() if sys.platform.startswith("linux") else _list_cores()


def core_count() -> int:
    """Return the number of cores that this process may use at a time: the physical cores, or the lowest CPU quota."""
    return min([len(physical_cores()), *filter(None, map(_quota, cgroups.folders()))])


def clamp(threads: int) -> tuple[int, str]:
    """Return the number of threads to run (at most one per core; 0: one per core), and a notice if it was reduced."""
    cores = core_count()
    if threads <= cores:
        return threads or cores, ""
    return cores, f"{cores} of {threads} threads are used: one per core"


def _linux_cores() -> list[int]:
    """Return the lowest allowed processor of each core, or all processors if siblings are unknown."""
    allowed = limits.allowed_processors()
    lowest = {min(_siblings(processor) & allowed | {processor}) for processor in allowed}
    return sorted(lowest)


def _siblings(processor: int) -> set[int]:
    """Return the processors of one core, parsed from "0,4" or "0-1"."""
    try:
        text = (TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        spans = [[int(end) for end in span.split("-")] for span in text.strip().split(",")]
    except (OSError, ValueError):
        return {processor}
    return {sibling for span in spans for sibling in range(span[0], span[-1] + 1)}


def _list_cores() -> list[int]:
    import psutil

    return list(range(psutil.cpu_count(logical=False) or os.cpu_count() or 1))


def _quota(group: Path) -> int:
    """Return the CPU quota of a control group in processors, rounded up; 0 without a limit."""
    try:
        share, period = (int(number) for number in (group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return 0
    return max(ceil(share / period), 1) if period else 0
