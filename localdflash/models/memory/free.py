"""Free memory of this machine or its container."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from localdflash.base.machine import cgroups
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import PROGRAM, Parts, total

MARGIN = 400 << 20  # bytes that stay free for other programs


def system_budget() -> MemoryBudget:
    """Return the memory available without swapping, without files that this process has mapped."""
    limits = [limit for folder in cgroups.folders() if (limit := _cgroup_free(folder)) is not None]
    free = min([psutil.virtual_memory().available, *limits])
    return MemoryBudget(max(free - mapped_bytes(), 0), MARGIN, "memory")


def all_memory() -> int:
    """Return the memory of this machine or its container in bytes."""
    total = int(psutil.virtual_memory().total)
    for folder in cgroups.folders():
        with suppress(OSError, ValueError):
            total = min(total, int((folder / "memory.max").read_text()))
    return total


def mapped_bytes() -> int:
    """Return the resident bytes of files that this process has mapped; 0 if unknown."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))


def program_bytes(with_torch: bool) -> int:
    """Return the resident bytes of this process, after importing torch if a part of the pair needs it."""
    if with_torch:
        import_module("torch")
    return resident_bytes()


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def with_program(parts: Parts) -> Parts:
    """Return the parts of a pair in this process, with all other resident bytes as the program."""
    return {**parts, PROGRAM: max(resident_bytes() - total(parts), 0)}


def _cgroup_free(folder: Path) -> int | None:
    """Return the free memory of a control group, page cache included; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(int(limit) - used + int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0)), 0)
