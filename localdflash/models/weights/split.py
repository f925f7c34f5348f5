"""Models in several files, NAME-00001-of-00003.gguf or .safetensors, identified by the path of the first part.

Every GGUF part's header has its number (from 0) and the counts of parts and tensors; the first part has the other keys.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from localdflash.base.errors import ModelError

MAX_PARTS = 512
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"

_PART = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)", re.DOTALL | re.ASCII
)


def part_number(name: str) -> tuple[int, int]:
    """Return the number of a part (from 1) and the number of parts, from its name; (1, 1) for any other name."""
    match = _PART.fullmatch(name)
    return (int(match["number"]), int(match["count"])) if match else (1, 1)


def names_of(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a model, given one part, with folders; else only the given name."""
    match = _PART.fullmatch(name)
    count = int(match["count"]) if match else 1
    if not match or not 1 < count <= MAX_PARTS:
        return (name,)
    return tuple(f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}" for number in range(1, count + 1))


def first_of(name: str) -> str:
    """Return the name of a model's first part."""
    return names_of(name)[0]


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts of a model, given one part; else only the given path."""
    return tuple(path if name == path.name else path.with_name(name) for name in names_of(path.name))


def count_bytes(path: Path) -> int:
    """Return the bytes of all existing parts."""
    return sum(size for _, size, _ in stats_of(path))


def stats_of(path: Path) -> list[tuple[Path, int, int]]:
    """Return the existing parts, each with its size in bytes and modification time in nanoseconds."""
    statuses = [(file, file.stat()) for file in files_of(path) if file.is_file()]
    return [(file, status.st_size, status.st_mtime_ns) for file, status in statuses]


def check_part(path: Path, metadata: Mapping[str, object], index: int, count: int) -> None:
    """Raise ModelError if a header is not that of part `index`, from 0, of `count`."""
    part_count = metadata.get(COUNT, 1)
    if count == 1 and part_count not in (0, 1):
        raise ModelError(f"{path}: a part of a model in {part_count} files; rename it to NAME-0000M-of-0000N.gguf")
    if count > 1 and (part_count, metadata.get(NUMBER)) != (count, index):
        raise ModelError(f"{path}: its header is not that of part {index + 1} of {count}; download it again")


def check_parts(path: Path) -> None:
    """Raise ModelError for a path that is not the first part, for too many parts, and for missing parts."""
    number, count = part_number(path.name)
    if count > MAX_PARTS or number > max(count, 1):
        raise ModelError(
            f"{path}: part {number} of {count}: expected at most {MAX_PARTS} parts; download the model again"
        )
    if number != 1 and count > 1:
        raise ModelError(f"{path}: part {number} of {count}; give the first one, {first_of(path.name)}")
    files = files_of(path)
    missing = [file.name for file in files[1:] if not os.path.isfile(file)]
    if missing and os.path.isfile(path):
        raise ModelError(
            f"{path}: missing {len(missing)} of its {len(files)} parts ({', '.join(missing)}); download them, too"
        )
