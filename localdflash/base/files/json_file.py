"""Read small files, mostly JSON, up to a size limit, and replace them atomically."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from localdflash.base.files.paths import create_private

T = TypeVar("T")


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the object in a file; {} if the file is missing, longer than `max_bytes`, or damaged."""
    try:
        with path.open("rb") as stream:
            value = json.loads(stream.read(max_bytes))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_record(path: Path, max_bytes: int, kind: type[T]) -> T | None:
    """Return the object in a file as a dataclass or struct; None if the file holds no such object."""
    try:
        return msgspec.convert(read_json(path, max_bytes), kind, str_keys=True)
    except msgspec.ValidationError:
        return None


def write_json(path: Path, value: Mapping[str, object], *, sync: bool = False) -> None:
    """Replace a JSON file; see `replace_file`."""
    replace_file(path, json.dumps(value, indent=1) + "\n", sync=sync)


def replace_file(path: Path, text: str, *, sync: bool = False, mode: int = 0o600) -> None:
    """Replace a file atomically, creating its folder; with `sync`, flush the new file to disk first.

    OSError or LocaldflashError if that fails; the old file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    create_private(path.parent)
    try:
        with open(temporary, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            stream.write(text)
            temporary.chmod(mode)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # none, if the disk is full
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
