"""In-memory store of indexed files and their definitions. Thread-safe."""

import heapq
import threading
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from localdflash.code.context.definitions import Definition, language_family
from localdflash.code.context.files import Signature

MAX_FOUND = 64  # definitions of one name that `find` returns


class IndexedFile(NamedTuple):
    """File as it was read, with its definitions."""

    signature: Signature
    language: str
    definitions: tuple[Definition, ...]


class FileStore:
    """Indexed files by absolute path."""

    def __init__(self) -> None:
        self.version = 0  # changes with the set of files
        self.edition = 0  # changes with the set of files or with any definition
        self._lock = threading.Lock()
        self._files: dict[str, IndexedFile] = {}
        self._folders: defaultdict[str, set[str]] = defaultdict(set)
        self._names: defaultdict[tuple[str, str], dict[str, tuple[Definition, ...]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> IndexedFile | None:
        """Return the entry of a file, or None."""
        return self._files.get(path)

    def folder(self, path: str) -> list[str]:
        """Return the paths of the files directly in a folder, sorted."""
        with self._lock:
            return sorted(self._folders.get(path, ()))

    def find(self, name: str, language: str) -> list[Definition]:
        """Return at most `MAX_FOUND` definitions of a name in the language's family, sorted by file and line."""
        with self._lock:
            by_file = self._names.get((language_family(language), name))
            files = heapq.nsmallest(MAX_FOUND, by_file) if by_file else []
            definitions = [definition for file in files for definition in by_file[file]] if by_file else []
        return definitions[:MAX_FOUND]

    def all(self) -> list[Definition]:
        """Return all definitions, sorted by file and line."""
        with self._lock:
            entries = sorted(self._files.items())
        return [definition for _, entry in entries for definition in entry.definitions]

    def put(self, path: str, entry: IndexedFile) -> None:
        """Add or replace a file."""
        names: defaultdict[str, list[Definition]] = defaultdict(list)
        for definition in entry.definitions:
            names[definition.name].append(definition)
        with self._lock:
            self.version += path not in self._files
            self.edition += 1
            self._drop(path)
            self._files[path] = entry
            self._folders[path.rpartition("/")[0]].add(path)
            for name, definitions in names.items():
                self._names[language_family(entry.language), name][path] = tuple(definitions)

    def drop(self, path: str) -> None:
        """Remove the file at a path, or all files below that folder."""
        self.keep_below(path, ())

    def keep_below(self, folder: str, seen: Collection[str]) -> None:
        """Remove the files below a folder that are not in `seen`, and a file at the folder's path."""
        with self._lock:
            below = [files for one, files in self._folders.items() if f"{one}/".startswith(f"{folder}/")]
            dropped = {path for files in below for path in files if path not in seen}
            dropped |= {folder} & self._files.keys()
            self.version += bool(dropped)
            self.edition += bool(dropped)
            for path in dropped:
                self._drop(path)

    def _drop(self, path: str) -> None:
        entry = self._files.pop(path, None)
        if entry is None:
            return
        folder = path.rpartition("/")[0]
        self._folders[folder].discard(path)
        if not self._folders[folder]:
            del self._folders[folder]
        for name in {definition.name for definition in entry.definitions}:
            key = (language_family(entry.language), name)
            self._names[key].pop(path, None)
            if not self._names[key]:
                del self._names[key]
