"""Stored measurements of this machine: memory bandwidth, and tokens per verify step (τ) of pairs."""

import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import msgspec

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import cache_folder
from localdflash.base.machine.cores import core_count
from localdflash.base.system import limits

MAX_FILE_BYTES = 1 << 20
BUSY_SUFFIX = " of a busy machine"  # ends `Measurement.how` if other programs kept the machine busy
BANDWIDTH_DAYS = 7  # days until memory bandwidth is measured again


@dataclass(frozen=True)
class Measurement:
    """Measured value (GB/s or tokens per verify step), how it was measured, and on which day."""

    value: float
    how: str
    day: str  # ISO date


def file() -> Path:
    """Return the path of the file of measurements."""
    return cache_folder() / "measurements.json"


def machine() -> str:
    """Return the machine's name and processor, because several machines may share a cache folder."""
    from localdflash.base.machine.hardware import describe_processor

    return f"{platform.node()}, {describe_processor()}"


def recall(name: str) -> Measurement | None:
    """Return this machine's stored measurement of this name, or None."""
    try:
        return msgspec.convert(read_json(file(), MAX_FILE_BYTES).get(f"{machine()}: {name}"), Measurement)
    except msgspec.ValidationError:
        return None


def remember(name: str, value: float, how: str) -> Measurement:
    """Store a value measured today, and return it as a `Measurement`. If the file cannot be written, store nothing."""
    measured = Measurement(float(value), how, date.today().isoformat())
    known = read_json(file(), MAX_FILE_BYTES) | {f"{machine()}: {name}": asdict(measured)}
    with suppress(OSError, LocaldflashError):
        write_json(file(), known)
    return measured


def bandwidth(on_gpu: bool = False) -> Measurement:
    """Return the memory bandwidth in GB/s: the stored value, or one measured now, which takes half a second.

    A value is used for `BANDWIDTH_DAYS`; a value measured on a busy machine is used only while the machine is busy.
    """
    from localdflash.base.machine import hardware

    name = f"bandwidth of {hardware.describe_gpu()}" if on_gpu else "bandwidth of memory"
    suffix = BUSY_SUFFIX if not on_gpu and limits.load_average() > core_count() / 2 else ""
    known = recall(name)
    is_fresh = known and (date.today() - date.fromisoformat(known.day)).days < BANDWIDTH_DAYS
    if known and is_fresh and (suffix or not known.how.endswith(BUSY_SUFFIX)):
        return known
    if on_gpu:
        return remember(name, hardware.gpu_bandwidth(), "read of 1 GB of GPU memory")
    return remember(name, hardware.bandwidth(), f"read of 256 MB on {hardware.reading_threads()} threads{suffix}")
