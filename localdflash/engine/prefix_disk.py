"""Saved sequences on disk, so that a new process need not compute prefixes again.

Each sequence is a safetensors file in a folder for its model: `ids`, `target`, `drafter.N`, and a digest of them. A
damaged file is deleted and never loaded, because the engines' C code trusts the bytes. The files are private (0600).
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from localdflash.base.system.process import is_running
from localdflash.engine.pair import SavedSequence, already_complete

# Metadata keys. "whole" marks a recurrent state, which is only usable as a whole; "in_blocks" holds `tokens_in_blocks`.
RECURRENT, IN_BLOCKS = "whole", "in_blocks"


class DiskCache:
    """Disk cache of one model's sequences; `identity` names files and settings, `budget` limits all models' bytes."""

    def __init__(self, root: Path, identity: str, budget: int) -> None:
        self.folder = root / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        self._root, self._budget = root, budget
        self._known: dict[Path, SavedSequence] = {}  # sequences without their caches
        for path in root.glob("*/*"):
            if _is_abandoned(path):
                _remove(path)
        for path in self.folder.glob("*.safetensors"):
            if (sequence := _read_without_caches(path)) is None:
                _remove(path)
            else:
                self._known[path] = sequence

    def find_longest(self, ids: Sequence[int], min_tokens: int) -> SavedSequence | None:
        """Return the sequence that shares the most leading ids; None if fewer than `min_tokens` or damaged."""
        best, longest = None, min_tokens
        for path, saved in self._known.items():
            if (shared := saved.count_shared(ids)) >= longest:
                best, longest = path, shared
        return self._read_or_delete(best) if best else None

    def _read_or_delete(self, path: Path) -> SavedSequence | None:
        state = _read_sequence(path)
        if state is None:
            del self._known[path]
            _remove(path)
            return None
        with suppress(OSError):  # the file may be read-only, or was deleted meanwhile
            os.utime(path)  # the least recently used files are deleted first
        return state

    def write(self, state: SavedSequence) -> None:
        """Write a sequence, unless it exists or exceeds the budget; OSError if the disk is full or read-only."""
        path = self.folder / f"{_digest(np.array(state.ids, np.int32).tobytes())}.safetensors"
        if path in self._known or state.size > self._budget:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary_path = path.with_suffix(f".{os.getpid()}")
        try:
            with open(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_serialize(state))
            temporary_path.replace(path)
        except BaseException:
            temporary_path.unlink(missing_ok=True)
            raise
        for other in [path for path, known in self._known.items() if state.contains(known.ids)]:
            del self._known[other]
            _remove(other)
        self._known[path] = replace(state, target=b"", drafters=(), wait=already_complete)
        self._evict()

    def _evict(self) -> None:
        """Delete the least recently used files, including files of other models, until the rest fits the budget."""
        files = []
        for path in self._root.glob("*/*.safetensors"):
            with suppress(OSError):  # another process deleted it
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        remaining = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if remaining <= self._budget:
                return
            _remove(path)
            self._known.pop(path, None)
            remaining -= size


def _serialize(state: SavedSequence) -> bytes:
    state.wait()
    parts: dict[str, NDArray[Any]] = {"ids": np.array(state.ids, np.int32)}
    parts["target"] = np.frombuffer(state.target, np.uint8)
    parts |= {f"drafter.{i}": np.frombuffer(part, np.uint8) for i, part in enumerate(state.drafters)}
    in_blocks = str(state.tokens_in_blocks)
    digest = _digest(*(part.tobytes() for part in parts.values()), in_blocks.encode())
    metadata = {"digest": digest, IN_BLOCKS: in_blocks}
    return bytes(save(parts, metadata | ({RECURRENT: "yes"} if state.is_recurrent else {})))


def _read_without_caches(path: Path) -> SavedSequence | None:
    try:
        with safe_open(path, "numpy") as file:
            ids, is_recurrent = file.get_tensor("ids"), RECURRENT in (file.metadata() or {})
    except (SafetensorError, OSError):
        return None
    is_valid = ids.dtype == np.int32 and ids.ndim == 1
    return SavedSequence(tuple(ids.tolist()), b"", (), is_recurrent) if is_valid else None


def _is_abandoned(path: Path) -> bool:
    """Return whether a file is unfinished and the process that wrote it has ended."""
    number = path.suffix.removeprefix(".")
    return number.isdecimal() and not is_running(int(number))


def _remove(path: Path) -> None:
    with suppress(OSError):  # another process deleted it, or it may not be removed
        path.unlink()


def _read_sequence(path: Path) -> SavedSequence | None:
    """Read a sequence; return None if the file is unreadable or does not match its digest."""
    try:
        with safe_open(path, "numpy") as file:
            names = ["ids", "target", *(f"drafter.{i}" for i in range(len(file.keys()) - 2))]
            parts = [file.get_tensor(name) for name in names]
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    ids, target, *drafters = (part.tobytes() for part in parts)
    in_blocks = metadata.get(IN_BLOCKS, "")
    if metadata.get("digest") != _digest(ids, target, *drafters, in_blocks.encode()):
        return None
    all_ids = tuple(np.frombuffer(ids, np.int32).tolist())
    return SavedSequence(all_ids, target, tuple(drafters), RECURRENT in metadata, int(in_blocks))


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
