"""Write proposals to disk, and undo them.

The old content of a file is first stored in the journal, so that changes interrupted by a crash can be undone. Then
the file is written under a temporary name and renamed into place. Undo leaves out files that were modified later. All
operations go through the open folder of a file, so that a link created meanwhile is not followed.
"""

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files.json_file import replace_file
from localdflash.base.system.descriptor import NEW_FILE, set_mode
from localdflash.base.system.open_folder import OpenFolder
from localdflash.chat.confined import WorkspaceFile, WorkspaceFolder, normalise_name, read_at
from localdflash.chat.proposals import FileProposal
from localdflash.code.context.files import clean_name

MAX_CHANGE_SETS = 50  # number of sets that the journal keeps
_STALE_SECONDS = 60.0  # after this time, no process still writes the files of a set
_CHANGED = "was changed meanwhile; look at the diff again"  # the caller puts the file's name before a message


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """Written files, in order. `problem`: why the other files were not written, or "". `notice`: a warning, or ""."""

    written: tuple[FileProposal, ...]
    problem: str = ""
    notice: str = ""


@dataclass(frozen=True, slots=True)
class UndoResult:
    """Restored files, and a line for each file that was not. Files that already had the old content are in neither."""

    restored: tuple[str, ...]
    problems: tuple[str, ...] = ()


class _FileChange(msgspec.Struct, frozen=True):
    """Change of one file: its old content, and the hash of its new content."""

    path: str
    before: bytes | None  # None: the file did not exist
    mode: int | None  # mode of the old file
    after: str | None  # SHA-256 of the new content; None: the file was deleted
    folders: list[str]  # folders created for the file, outermost first


class _ChangeSet(msgspec.Struct):
    """Changes written by one call of `apply_proposals`. `name` begins with the time in nanoseconds since 1970."""

    name: str
    root: str
    files: list[_FileChange]

    @property
    def temporary(self) -> str:
        """Return the name under which a file is written before it replaces the old one."""
        return f".localdflash-{self.name}.tmp"

    @property
    def age(self) -> float:
        """Return the seconds since the set was recorded, just before its files were written."""
        return time.time() - int(self.name.partition("-")[0]) / 1e9


class Journal:
    """Change sets applied below a root, newest last; stored in `folder`, or in memory if it is None."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self.target = WorkspaceFolder(root)
        self._folder = folder
        self._sets = [] if folder is None else _load_sets(folder, self.target.path)
        if self._sets and self._sets[-1].age > _STALE_SECONDS:
            _remove_temporaries(self.target, self._sets[-1])

    def last(self) -> tuple[tuple[str, ...], float] | None:
        """Return the files that `undo_last` would restore, and how many seconds ago they were written."""
        return (tuple(entry.path for entry in self._sets[-1].files), self._sets[-1].age) if self._sets else None

    def add(self, proposals: Sequence[FileProposal]) -> tuple[_ChangeSet, str]:
        """Record proposals before they are written; return the set, and a warning ("": none) if it is not on disk."""
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        changes = _ChangeSet(name, self.target.path, [_record_change(self.target, each) for each in proposals])
        self._sets = [*self._sets[1 - MAX_CHANGE_SETS :], changes]
        return changes, self._store(changes)

    def keep_only(self, paths: Sequence[str]) -> None:
        """Remove all but these files from the newest set; if no file is left, remove the set."""
        newest = self._sets[-1]
        newest.files = [entry for entry in newest.files if entry.path in paths]
        if not newest.files:
            self._sets.pop()
        self.update(newest)

    def pop_newest(self) -> _ChangeSet | None:
        """Remove the newest set from memory, not from disk, and return it; None if there is none."""
        return self._sets.pop() if self._sets else None

    def update(self, changes: _ChangeSet) -> None:
        """Write a changed set to disk; delete a set that has no files left."""
        if changes.files:
            self._store(changes)
        elif self._folder is not None:
            with suppress(OSError):
                (self._folder / f"{changes.name}.json").unlink(missing_ok=True)

    def _store(self, changes: _ChangeSet) -> str:
        if self._folder is None:
            return ""
        try:
            replace_file(self._folder / f"{changes.name}.json", msgspec.json.encode(changes).decode(), sync=True)
            for old in sorted(self._folder.glob("*.json"))[:-MAX_CHANGE_SETS]:
                old.unlink(missing_ok=True)
        except OSError as error:
            return f"{self._folder}: {error.strerror}: undo is possible only until you leave"
        except LocaldflashError as error:
            return f"{error}: undo is possible only until you leave"
        return ""


def apply_proposals(proposals: Sequence[FileProposal], journal: Journal) -> ApplyResult:
    """Write the files in order, each only if unchanged since the proposal; stop at the first failure."""
    changes, notice = journal.add(proposals)
    written: list[FileProposal] = []
    problem = ""
    for one in proposals:
        try:
            if one.problem:
                raise UsageError(one.problem)
            journal.target.check(one.path)
            _write(journal.target, one.path, one.before, one.after, changes.temporary)
        except UsageError as error:
            problem = f"{clean_name(one.path)} {error}"
            break
        written.append(one)
    if problem:
        journal.keep_only([one.path for one in written])
    return ApplyResult(tuple(written), problem, notice)


def undo_last(journal: Journal) -> UndoResult | None:
    """Restore the files of the newest set, last file first; return None if there is nothing to undo."""
    if not (changes := journal.pop_newest()):
        return None
    restored: list[str] = []
    problems: list[tuple[_FileChange, str]] = []
    _remove_temporaries(journal.target, changes)
    for entry in reversed(changes.files):
        try:
            if _restore(journal.target, entry, changes.temporary):
                restored.append(entry.path)
        except UsageError as error:
            problems.append((entry, f"{clean_name(entry.path)} {error}"))
    changes.files = [entry for entry, _ in reversed(problems)]
    journal.update(changes)
    return UndoResult(tuple(reversed(restored)), tuple(line for _, line in reversed(problems)))


def _record_change(target: WorkspaceFolder, one: FileProposal) -> _FileChange:
    current: WorkspaceFile | None = None
    with suppress(UsageError):
        current = target.read(one.path)
    parents = [str(parent) for parent in reversed(Path(one.path).parents) if parent != Path()]
    missing = [parent for parent in parents if not os.path.lexists(os.path.join(target.path, parent))]
    return _FileChange(one.path, one.before, current.mode if current else None, _hash(one.after), missing)


def _restore(target: WorkspaceFolder, entry: _FileChange, temporary: str) -> bool:
    """Restore one file; return whether its content changed. UsageError if the file was modified after the change."""
    current = target.read(normalise_name(entry.path))
    now = current.data if current else None
    if now != entry.before:
        if _hash(now) != entry.after:
            raise UsageError("was changed since; it is not restored")
        _write(target, entry.path, now, entry.before, temporary, entry.mode)
    for folder in reversed(entry.folders):
        _remove_empty(target, folder)
    return now != entry.before


def _write(
    target: WorkspaceFolder,
    name: str,
    before: bytes | None,
    after: bytes | None,
    temporary: str,
    mode: int | None = None,
) -> None:
    """Replace a file's content; UsageError if its content is not `before`. `mode`: mode of a file that is created."""
    created: list[str] | None = [] if before is None else None
    try:
        with target.reach(name, created) as place:
            if place is None:
                raise UsageError(_CHANGED)
            folder, file_name = place
            current = read_at(folder, file_name)
            if (current.data if current else None) != before:
                raise UsageError(_CHANGED)
            if current and not current.mode & 0o222:
                raise UsageError("is read-only")
            if after is None:
                folder.remove(file_name)
            else:
                _write_temporary(folder, file_name, after, current, temporary, current.mode if current else mode)
            with suppress(OSError):  # the file is written; only a power cut could lose it
                folder.sync()
    except (OSError, UsageError) as error:
        for path in reversed(created or []):
            _remove_empty(target, path)
        if isinstance(error, OSError):
            raise UsageError(f"cannot be written: {error.strerror}") from error
        raise


def _write_temporary(
    folder: OpenFolder, name: str, data: bytes, replaced_file: WorkspaceFile | None, temporary: str, mode: int | None
) -> None:
    """Write a temporary file in the same folder, then move it into place in one step."""
    try:
        descriptor = folder.open(temporary, NEW_FILE, 0o666 if mode is None else mode & 0o777)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                set_mode(descriptor, mode)
            os.fsync(descriptor)
        _move_into_place(folder, name, replaced_file, temporary)
    finally:
        with suppress(OSError):
            folder.remove(temporary)


def _move_into_place(folder: OpenFolder, name: str, replaced_file: WorkspaceFile | None, temporary: str) -> None:
    """Check again that the file is unchanged, then replace it. A new file is linked, so that it replaces nothing."""
    if replaced_file is None:
        try:
            folder.link(temporary, name)
            return
        except FileExistsError:
            raise UsageError(_CHANGED) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
    now = read_at(folder, name)
    if (now and now.identity) != (replaced_file and replaced_file.identity):
        raise UsageError(_CHANGED)
    folder.replace(temporary, name)


def _remove_empty(target: WorkspaceFolder, folder: str) -> None:
    with suppress(OSError, UsageError), target.reach(folder) as place:
        if place:
            place[0].remove_folder(place[1])


def _remove_temporaries(target: WorkspaceFolder, changes: _ChangeSet) -> None:
    """Remove the temporary files of an interrupted set."""
    for entry in changes.files:
        with suppress(OSError, UsageError), target.reach(normalise_name(entry.path)) as place:
            if place:
                place[0].remove(changes.temporary)


def _hash(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _load_sets(folder: Path, root: str) -> list[_ChangeSet]:
    """Return the readable sets in `folder` whose root is `root`, oldest first."""
    change_sets = []
    for path in sorted(folder.glob("*.json"))[-MAX_CHANGE_SETS:]:
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            if not path.is_file():  # opening a FIFO would block
                continue
            changes = msgspec.json.decode(path.read_bytes(), type=_ChangeSet)
            if changes.root == root and changes.name == path.stem and changes.age >= 0:
                change_sets.append(changes)
    return change_sets
