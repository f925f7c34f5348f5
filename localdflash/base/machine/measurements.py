"""Measurements of this machine, kept in the cache folder: memory bandwidth, and tokens per verify (tau) of pairs.

If the file cannot be read things are measured anew; if it cannot be written they are measured every time.
"""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import cache_folder, create_private

LONGEST = 1 << 20  # bytes of the file


@dataclass(frozen=True)
class Measurement:
    """A value and where it comes from."""

    value: float
    how: str
    day: str  # 2026-08-31


def file() -> Path:
    """Return the path of the measurements."""
    return cache_folder() / "measurements.json"


def machine() -> str:
    """Return the machine's name and processor, because several machines may share a cache folder."""
    from localdflash.base.machine.hardware import device

    return f"{platform.node()}, {device()}"


def recall(name: str) -> Measurement | None:
    """Return what this machine measured under a name, or None."""
    found = _read().get(f"{machine()}: {name}")
    try:
        known = Measurement(**found) if isinstance(found, dict) else None
    except TypeError:
        return None
    sound = known and isinstance(known.value, float) and isinstance(known.how, str) and isinstance(known.day, str)
    return known if sound else None


def remember(name: str, value: float, how: str) -> Measurement:
    """Keep a value measured now."""
    measured = Measurement(float(value), how, date.today().isoformat())
    known = _read() | {f"{machine()}: {name}": asdict(measured)}
    place = file()
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError, LocaldflashError):
        create_private(place.parent)
        try:
            fresh.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)
    return measured


def bandwidth(on_gpu: bool = False) -> Measurement:
    """GB/s at which memory is read: measured once per machine (half a second), then recalled."""
    from localdflash.base.machine import hardware

    name = f"bandwidth of {hardware.gpu()}" if on_gpu else "bandwidth of memory"
    if known := recall(name):
        return known
    if on_gpu:
        return remember(name, hardware.gpu_bandwidth(), "read of 1 GB of GPU memory")
    return remember(name, hardware.bandwidth(), f"read of 256 MB on {hardware.reading_threads()} threads")


def _read() -> dict[str, object]:
    try:
        with file().open("rb") as stream:
            known = json.loads(stream.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
