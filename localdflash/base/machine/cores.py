"""Which processors a process may use, one of each physical core: two threads of a core share its multipliers."""

import os
import sys
from functools import cache
from math import ceil
from pathlib import Path

from localdflash.base.system import limits

TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


@cache
def physical_cores() -> list[int]:
    """Return one logical processor of every physical core that this process may run on, ascending; never empty.

    If a container has a quota of processor time, no more cores than that is worth.
    """
    cores = _on_linux() if sys.platform.startswith("linux") else _counted()
    return cores[: _quota() or len(cores)]


def clamp(threads: int) -> tuple[int, str]:
    """The number of threads to run, and a line for the user if it is less than asked for; 0 asks for one a core."""
    cores = len(physical_cores())
    if threads <= cores:
        return threads or cores, ""
    return cores, f"{cores} of {threads} threads run: one for each core"


def _on_linux() -> list[int]:
    """Return the lowest allowed processor of each core; all of them if Linux does not say which are siblings."""
    allowed = limits.allowed_processors()
    firsts = {min(_siblings(processor) & allowed | {processor}) for processor in allowed}
    return sorted(firsts)


def _siblings(processor: int) -> set[int]:
    """Return the processors of one core, parsed from "0,4" or "0-1"."""
    try:
        text = (TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        spans = [[int(end) for end in span.split("-")] for span in text.strip().split(",")]
    except (OSError, ValueError):
        return {processor}
    return {sibling for span in spans for sibling in range(span[0], span[-1] + 1)}


def _counted() -> list[int]:
    """As many as the system counts, if processors cannot be told apart."""
    import psutil

    return list(range(psutil.cpu_count(logical=False) or os.cpu_count() or 1))


def _quota() -> int:
    """Return the processors that a container's share of time is worth, 0 without a limit."""
    try:
        share, period = (int(number) for number in QUOTA.read_text().split())
    except (OSError, ValueError):  # "max" is no number
        return 0
    return max(ceil(share / period), 1) if period else 0
