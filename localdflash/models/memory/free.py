"""How much memory a pair may take on this machine: what the system, or the limit of a container, leaves free."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import PROGRAM, Parts, total

MARGIN = 400 << 20  # bytes left to the rest of the system: browsers and editors grow too
CGROUP = Path("/sys/fs/cgroup")


def system_budget() -> MemoryBudget:
    """Memory that can be had without swapping; the page cache counts as free, but for files that this process uses.

    So a second pair is planned beside the mapped weights of the first one.
    """
    free = psutil.virtual_memory().available
    limit = _cgroup_free(CGROUP)
    return MemoryBudget(max((free if limit is None else min(free, limit)) - mapped(), 0), MARGIN, "memory")


def all_memory() -> int:
    """Return the bytes of memory that this machine has, or that its container may use."""
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):
        total = min(total, int((CGROUP / "memory.max").read_text()))
    return int(total)


def mapped() -> int:
    """Return the bytes of files that are mapped into this process and in memory; 0 where the system does not tell."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))


def program_bytes(with_torch: bool) -> int:
    """Bytes that this process holds now, plus torch's if a part of the pair needs that: measured, not estimated."""
    if with_torch:
        import_module("torch")
    return resident()


def resident() -> int:
    """Return the bytes of memory that this process has in use."""
    return int(psutil.Process().memory_info().rss)


def with_program(parts: Parts) -> Parts:
    """Return the parts of a pair in this process, with everything else that is resident as the program."""
    return {**parts, PROGRAM: max(resident() - total(parts), 0)}


def _cgroup_free(folder: Path) -> int | None:
    """Return what the limit of this container leaves, counting files that can be dropped; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(int(limit) - used + int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0)), 0)
