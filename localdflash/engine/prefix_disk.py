"""Saved sequences on disk, so that a new process need not compute again what an older one knew.

One safetensors file a state, in a folder of its own for each model: `ids`, `target`, `drafter.N`, and a digest of them.
A file that is damaged, cut or of another model is deleted and never loaded, because C code reads it. Files are readable
by this user alone; the least recently used ones go when the budget of bytes is spent.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from localdflash.engine.pair import SavedSequence, at_once

WHOLE = "whole"


class DiskCache:
    """Saved KV states of the model that `identity` names: its files and the settings that decide the KV cache."""

    def __init__(self, root: Path, identity: str, budget: int) -> None:
        self.folder = root / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        self._root, self._budget = root, budget
        self._known: dict[Path, SavedSequence] = {}  # without their bytes
        for path in root.glob("*/*"):
            if _is_abandoned(path):
                _remove(path)
        for path in self.folder.glob("*.safetensors"):
            if (known := _read_ids(path)) is None:
                _remove(path)
            else:
                self._known[path] = known

    def find_longest(self, ids: Sequence[int], at_least: int) -> SavedSequence | None:
        """The state that shares most with `ids`, if that is `at_least` so many tokens."""
        best, most = None, at_least
        for path, saved in self._known.items():
            if (shared := saved.shared(ids)) >= most:
                best, most = path, shared
        return self._read(best) if best else None

    def _read(self, path: Path) -> SavedSequence | None:
        state = _read_state(path)
        if state is None:
            del self._known[path]
            _remove(path)
            return None
        with suppress(OSError):  # it may not be written, or is gone by now
            os.utime(path)  # used just now
        return state

    def keep(self, state: SavedSequence) -> None:
        """Write a state, unless it is there or does not fit; OSError if the disk is full or cannot be written."""
        path = self.folder / f"{_digest(np.array(state.ids, np.int32).tobytes())}.safetensors"
        if path in self._known or state.size > self._budget:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_packed(state))
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        for other in [path for path, known in self._known.items() if state.contains(known.ids)]:
            del self._known[other]
            _remove(other)
        self._known[path] = replace(state, target=b"", drafters=(), arrived=at_once)
        self._make_room()

    def _make_room(self) -> None:
        """Delete the least recently used files, those of other models included, until the rest fits the budget."""
        files = []
        for path in self._root.glob("*/*.safetensors"):
            with suppress(OSError):  # somebody else was faster
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        left = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if left <= self._budget:
                return
            _remove(path)
            self._known.pop(path, None)
            left -= size


def _packed(state: SavedSequence) -> bytes:
    state.arrived()
    parts: dict[str, NDArray[Any]] = {"ids": np.array(state.ids, np.int32)}
    parts["target"] = np.frombuffer(state.target, np.uint8)
    parts |= {f"drafter.{i}": np.frombuffer(part, np.uint8) for i, part in enumerate(state.drafters)}
    about = {"digest": _digest(*(part.tobytes() for part in parts.values()))}
    return bytes(save(parts, about | ({WHOLE: "yes"} if state.is_recurrent else {})))


def _read_ids(path: Path) -> SavedSequence | None:
    """A state without its bytes."""
    try:
        with safe_open(path, "numpy") as file:
            ids, whole = file.get_tensor("ids"), WHOLE in (file.metadata() or {})
    except (SafetensorError, OSError):
        return None
    return SavedSequence(tuple(ids.tolist()), b"", (), whole) if ids.dtype == np.int32 and ids.ndim == 1 else None


def _is_abandoned(path: Path) -> bool:
    """Return whether a file is unfinished and the process that wrote it has ended."""
    number = path.suffix.removeprefix(".")
    return number.isdecimal() and not psutil.pid_exists(int(number))


def _remove(path: Path) -> None:
    with suppress(OSError):  # somebody else was faster, or it may not be removed
        path.unlink()


def _read_state(path: Path) -> SavedSequence | None:
    """The state in a file; None if it is not what was written."""
    try:
        with safe_open(path, "numpy") as file:
            names = ["ids", "target", *(f"drafter.{i}" for i in range(len(file.keys()) - 2))]
            parts = [file.get_tensor(name) for name in names]
            about = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    ids, target, *drafters = (part.tobytes() for part in parts)
    if about.get("digest") != _digest(ids, target, *drafters):
        return None
    return SavedSequence(tuple(np.frombuffer(ids, np.int32).tolist()), target, tuple(drafters), WHOLE in about)


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
