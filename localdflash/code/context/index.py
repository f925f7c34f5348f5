"""Index of the definitions in a workspace, kept up to date by one thread. Lookups never read the disk.

Not indexed: dependencies, build results, ignored files, secrets, links, files without a grammar, binary or minified
files and those over 1 MB, and everything beyond `MAX_FILES` files or `MAX_FOLDERS` folders.
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

from watchdog.observers.api import BaseObserver

from localdflash.code.context import watch
from localdflash.code.context.definitions import Definition, find_definitions
from localdflash.code.context.denied import Refusal, is_secret
from localdflash.code.context.files import MAX_FILE_BYTES, clean_name, read_signature, read_text
from localdflash.code.context.ignore import IGNORE_FILES, OWN_IGNORE_FILE, IgnoreRules
from localdflash.code.context.index_store import FileStore, IndexedFile
from localdflash.code.context.listing import SKIPPED, list_entries, may_enter
from localdflash.text.syntax import language_of

MAX_FILES = 20_000  # files in all roots together
MAX_FOLDERS = watch.MAX_FOLDERS  # folders per scan
PAUSE_SECONDS = 0.2  # from a file's first change until the file is read
SOURCE_FOLDERS = ("", "src", "lib", "include", "python", "app", "src/main/java", "main/java")  # searched for modules


class ChangeQueue:
    """Queue of changed paths that any thread fills and one thread empties, after a pause that collects changes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._closed = False
        self._busy = False

    def put(self, path: str, *, gone: bool = False, pause: float = PAUSE_SECONDS) -> None:
        """Queue a path. `gone`: it was renamed, so drop it even if a case-insensitive disk still finds it."""
        with self._changed:
            due = time.monotonic() + pause
            self._due[path] = min(self._due.get(path, due), due)
            (self._gone.add if gone else self._gone.discard)(path)
            self._changed.notify_all()

    def take(self) -> list[tuple[str, bool]]:
        """Wait for paths whose pause is over; return (path, `gone`) of each, or [] once the queue is closed."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._closed:
                now = time.monotonic()
                if ready := [path for path, due in self._due.items() if due <= now]:
                    self._busy = True
                    changes = [(path, path in self._gone) for path in ready]
                    for path in ready:
                        del self._due[path]
                        self._gone.discard(path)
                    return changes
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return []

    def settled(self, timeout: float) -> bool:
        """Wait until the queue is empty and no path is being processed; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._due or self._busy), timeout)

    def start(self) -> None:
        """Mark the consumer as busy until its next `take`."""
        self._busy = True

    def close(self) -> None:
        """Make `take` return []."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Root(NamedTuple):
    given: str  # absolute path as the editor names it
    path: str  # absolute path with links resolved
    rules: IgnoreRules


class Workspace:
    """Index of the folders (roots) that an editor has open. `warn` gets each warning once, from any thread.

    `previous`: workspace that this one replaces; its index of folders that both have is reused.
    """

    def __init__(self, roots: Sequence[Path], warn: Callable[[str], None], previous: "Workspace | None" = None) -> None:
        self._roots: list[_Root] = []
        for given in sorted((os.path.abspath(root) for root in roots), key=len):
            real = os.path.realpath(given)
            if self._root_of(real) is None:  # a root within another root is part of that root
                self._roots.append(_Root(given, real, IgnoreRules(Path(real))))
        self._previous = previous
        self._warn = warn
        self._warned: set[str] = previous._warned if previous else set()
        self._store: FileStore = previous._store if previous else FileStore()
        self._changes = ChangeQueue()
        self._locate = lru_cache(4096)(self._find_module)
        self._stop, self._unwatched = threading.Event(), threading.Event()
        self._unwatched.set()
        self._observer: BaseObserver | None = None
        self._when_read: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="workspace", daemon=True)

    def start(self, when_read: Callable[[], None] = lambda: None) -> None:
        """Start the thread, which reads all files, calls `when_read` unless closed, and follows changes. Call once."""
        self._when_read = when_read
        self._changes.start()
        self._thread.start()

    def close(self, patience: float | None = 1.0) -> None:
        """Stop the thread, waiting at most `patience` seconds. Lookups still work. May be called again."""
        self._stop.set()
        self._changes.close()
        if self._thread.is_alive():
            self._thread.join(patience)

    def settled(self, timeout: float) -> bool:
        """Wait until all queued changes are in the index; return False after `timeout` seconds."""
        return self._changes.settled(timeout)

    def allowed(self, path: Path) -> bool:
        """Return whether a file may be read, indexed or put into a prompt."""
        return self.refusal(path) is None

    def refusal(self, path: Path) -> Refusal | None:
        """Return why a file may not be used, or None. Outside all roots only secrets are refused."""
        try:
            lexical, real = os.path.abspath(path), os.path.realpath(path)
        except ValueError:  # a NUL in its name
            return Refusal.OUTSIDE
        if is_secret(PurePath(lexical)) or is_secret(PurePath(real)):
            return Refusal.SECRET
        root = self._root_of(real)
        if root is None:
            return None if self._root_of(lexical) is None else Refusal.OUTSIDE
        kind = root.rules.ignored_by(_relative(root, real))
        return {"": None, OWN_IGNORE_FILE: Refusal.OURS}.get(kind, Refusal.GIT)

    def allowed_name(self, name: str) -> bool:
        """Return whether a path may be used. A relative path must be allowed in every root."""
        if is_secret(PurePath(name)):
            return False
        return os.path.isabs(name) or all(self.allowed(Path(root.path, name)) for root in self._roots)

    def find(self, name: str, language: str) -> Sequence[Definition]:
        """Return at most `index_store.MAX_FOUND` definitions of a name, sorted by file and line."""
        return self._store.find(name, language)

    def definitions(self) -> Sequence[Definition]:
        """Return all definitions read so far, sorted by file and line."""
        return self._store.all()

    @property
    def edition(self) -> int:
        """Return a number that changes whenever the definitions may have changed."""
        return self._store.edition

    def defined_in(self, path: str) -> Sequence[Definition]:
        """Return the definitions of the file at an absolute path."""
        entry = self._store.get(path)
        return entry.definitions if entry else ()

    def locate(self, path: str, module: str) -> Sequence[str]:
        """Return absolute paths of the indexed files of a module that the file at `path` (links resolved) imports.

        `module` is a path of an `Import`. Without `./` or `../` it is searched in `SOURCE_FOLDERS` of each folder from
        the file's folder up to the root. A path that ends with `/` means all files of that folder.
        """
        return self._locate(os.path.dirname(path), module, self._store.version)

    def refresh(self, path: Path) -> None:
        """Queue a file to be read again, because it was opened or saved."""
        self._changes.put(os.path.abspath(path), pause=0.0)

    def _find_module(self, folder: str, module: str, _version: int) -> Sequence[str]:
        root = self._root_of(folder)
        if root is None:
            return ()
        if module.startswith("."):
            return self._files(os.path.normpath(f"{folder}/{module}") + "/" * module.endswith("/"))
        while True:
            for source in SOURCE_FOLDERS:
                if files := self._files("/".join(part for part in (folder, source, module) if part)):
                    return files
            if len(folder) <= len(root.path):
                return ()
            folder = os.path.dirname(folder)

    def _files(self, path: str) -> Sequence[str]:
        if path.endswith("/"):
            return self._store.folder(path[:-1])
        return [path] if self._store.get(path) else []

    def _root_of(self, path: str) -> _Root | None:
        roots = (root for root in self._roots if f"{path}/".startswith((f"{root.path}/", f"{root.given}/")))
        return next(roots, None)

    def _run(self) -> None:
        if self._previous:
            self._take_over(self._previous)
        self._read_all()
        if not self._stop.is_set():
            self._when_read()
        while changed := self._changes.take():
            if any(os.path.basename(path) in IGNORE_FILES for path, _ in changed):  # of a root, or of a folder above
                self._read_all()
                continue
            for path, gone in changed:
                self._process(path, gone)
            if self._unwatched.is_set():
                self._stop_watching()
        self._stop_watching()

    def _read_all(self) -> None:
        """Read the ignore files, watch the folders that they leave, and index the files there."""
        self._stop_watching()
        for root in self._roots:
            root.rules.forget()
        self._watch()
        for root in self._roots:
            self._scan(root, "")

    def _take_over(self, previous: "Workspace") -> None:
        """Wait for the previous workspace's thread to end, and drop the files of roots that only it had."""
        previous.close(None)
        for path in {root.path for root in previous._roots} - {root.path for root in self._roots}:
            self._store.drop(path)  # files that are still within a root are read again, under their new names
        self._previous = None

    def _watch(self) -> None:
        listener = watch.WatchListener(self._queue_event, self._should_watch, self._queue_all, self._give_up_watching)
        self._unwatched.clear()
        try:
            self._observer = watch.start_watching([root.path for root in self._roots], listener)
        except OSError as error:
            self._unwatched.set()
            self._warn_once(watch.format_warning(error))

    def _stop_watching(self) -> None:
        if self._observer:
            watch.stop_watching(self._observer)
        self._observer = None

    def _queue_event(self, path: str, gone: bool, folder: bool) -> None:
        name = os.path.basename(path)
        if folder or name in IGNORE_FILES or language_of(name):
            self._changes.put(path, gone=gone)

    def _should_watch(self, folder: str) -> bool:
        root = self._root_of(folder)
        if root is None or self._stop.is_set() or self._unwatched.is_set():
            return False
        return may_enter(root.rules, _relative(root, folder))

    def _queue_all(self) -> None:
        for root in self._roots:
            self._changes.put(root.path)

    def _give_up_watching(self, error: OSError) -> None:
        self._unwatched.set()
        self._warn_once(watch.format_warning(error))
        self._queue_all()  # also wakes the index thread, which stops the observer

    def _process(self, path: str, gone: bool) -> None:
        """Update the index for a changed file or folder that is not an ignore file."""
        path = path if self._root_of(path) else os.path.realpath(path)
        root = self._root_of(path)
        if root is None:
            return
        name = _relative(root, path)
        folders = name.split("/")[:-1]
        if self._unwatched.is_set():
            root.rules.forget()
        path = f"{root.path}/{name}".rstrip("/")
        if gone or SKIPPED & set(folders) or (folders and root.rules.ignored("/".join(folders), True)):
            self._store.drop(path)
        elif not name or _is_folder(path):
            self._scan(root, name)
        elif not self._index(root, name):
            self._store.drop(path)

    def _scan(self, root: _Root, top: str) -> None:
        """Index all files below a folder of a root ("" for the root), and drop those that no longer exist."""
        indexed, stack = set(), [top]
        if top and not may_enter(root.rules, top):
            stack.clear()
        scanned = 0  # folders
        while stack:
            if self._stop.is_set():
                return
            folder = stack.pop()
            scanned += 1
            if scanned > MAX_FOLDERS:
                self._warn_too_many(root)
                break
            for entry in list_entries(f"{root.path}/{folder}"):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if may_enter(root.rules, name):
                        stack.append(name)
                elif not self._stop.is_set() and self._index(root, name):
                    indexed.add(f"{root.path}/{name}")
            time.sleep(0)
        self._store.keep_below(f"{root.path}/{top}".rstrip("/"), indexed)

    def _index(self, root: _Root, name: str) -> bool:
        """Read a file unless it is unchanged; return whether it is indexed now. `may_enter` must allow its folder."""
        path = f"{root.path}/{name}"
        if not language_of(name) or is_secret(PurePath(name)) or root.rules.ignored_entry(name):
            return False
        signature, indexed = read_signature(path), self._store.get(path)
        if signature is None or signature.size > MAX_FILE_BYTES:
            return False
        if indexed and indexed.signature == signature:
            return True
        if indexed is None and len(self._store) >= MAX_FILES:
            self._warn_too_many(root)
            return False
        text = read_text(root.path, name)
        if text is None:
            return False
        language = language_of(name, text=text)
        definitions = find_definitions(clean_name(name), language, text)
        self._store.put(path, IndexedFile(signature, language, tuple(definitions)))
        time.sleep(0)  # let a waiting event loop run first
        return True

    def _warn_too_many(self, root: _Root) -> None:
        self._warn_once(
            f"{clean_name(root.given)} has more than {MAX_FILES} source files or {MAX_FOLDERS} folders: the rest is "
            "not indexed; list folders to leave out in .localdflashignore"
        )

    def _warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._warn(line)


def _relative(root: _Root, path: str) -> str:
    """Return a path relative to its root; "" for the root itself."""
    return path.removeprefix(root.path if f"{path}/".startswith(f"{root.path}/") else root.given).strip("/")


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
