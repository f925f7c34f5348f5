"""Models in several files: NAME-00001-of-00003.gguf and its siblings, as llama.cpp's gguf-split names them, and the
same of safetensors, as Hugging Face's libraries do.

The first part stands for all of them: its path is the model's. Every part has a header, and the tensors of all parts
together are the model's. In a GGUF the first one has the metadata, and each says which one it is (`split.no` from 0,
`split.count`) and how many tensors there are in all (`split.tensors.count`). A name and a header that disagree are
refused, as llama.cpp does.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from localdflash.base.errors import ModelError

MOST_PARTS = 512
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"

_PART = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)", re.DOTALL | re.ASCII
)


def number_of(name: str) -> tuple[int, int]:
    """Which part a file is by its name, from 1, and of how many; (1, 1) for any other name."""
    found = _PART.fullmatch(name)
    return (int(found["number"]), int(found["count"])) if found else (1, 1)


def names_of(name: str) -> tuple[str, ...]:
    """The names of all parts of a model, of which this is one, with the same folders; of any other file its own."""
    found = _PART.fullmatch(name)
    count = int(found["count"]) if found else 1
    if not found or not 1 < count <= MOST_PARTS:
        return (name,)
    return tuple(f"{found['stem']}-{number:05}-of-{count:05}{found['suffix']}" for number in range(1, count + 1))


def first_of(name: str) -> str:
    """Return the name of the part that stands for a model."""
    return names_of(name)[0]


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts of a model by the name of one; of any other file its own."""
    parts = names_of(path.name)
    return tuple(map(path.with_name, parts)) if len(parts) > 1 else (path,)


def size_of(path: Path) -> int:
    """Return the bytes of all parts that are there."""
    return sum(file.stat().st_size for file in files_of(path) if file.is_file())


def stats_of(path: Path) -> list[tuple[Path, int, int]]:
    """Return every part that is there, with its bytes and the time of its last change in nanoseconds."""
    found = [(file, file.stat()) for file in files_of(path) if file.is_file()]
    return [(file, about.st_size, about.st_mtime_ns) for file, about in found]


def check_part(path: Path, metadata: Mapping[str, object], index: int, count: int) -> None:
    """ModelError unless a header says that it is part `index`, from 0, of `count`, as its name does."""
    said = metadata.get(COUNT, 1)
    if count == 1 and said not in (0, 1):
        raise ModelError(f"{path}: part of a model in {said} files, which must be called NAME-00001-of-0000N.gguf")
    if count > 1 and (said, metadata.get(NUMBER)) != (count, index):
        raise ModelError(
            f"{path}: called part {index + 1} of {count}, but its header says otherwise; download it again"
        )


def check_first(path: Path) -> None:
    """ModelError for a path that is not the first part, with that one's name; and for too many parts."""
    number, count = number_of(path.name)
    if count > MOST_PARTS or number > max(count, 1):
        raise ModelError(f"{path}: called part {number} of {count}; a model has at most {MOST_PARTS} parts")
    if number != 1 and count > 1:
        raise ModelError(f"{path}: part {number} of {count}; give the first one, {PurePath(first_of(path.name)).name}")


def check_there(path: Path) -> None:
    """ModelError that names the parts of a model that are missing."""
    files = files_of(path)
    missing = [file.name for file in files[1:] if not os.path.isfile(file)]
    if missing and os.path.isfile(path):
        raise ModelError(f"{path}: not here of its {len(files)} parts: {', '.join(missing)}; download them, too")
