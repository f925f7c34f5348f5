"""Downloads a file from the hub. The file appears under its name complete and verified, or not at all.

    .NAME.DIGEST.partial  ->  size and hash match  ->  NAME, with its record next to it
                          ->  mismatch             ->  NAME.mismatch, never loaded

A killed process leaves at most a partial file, which the next process resumes.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.base.files.paths import create_private, nearest_folder
from localdflash.models.memory.parts import format_bytes
from localdflash.models.registry import hub, records
from localdflash.models.registry.hub import Progress, Remote
from localdflash.models.registry.pair_entry import FileSource
from localdflash.models.registry.records import FileRecord

CHUNK = 4 << 20  # bytes hashed at a time
SHA256, GIT = 64, 40  # digits of SHA-256 and of git's SHA-1


class DownloadReport(Protocol):
    """Progress display of a download."""

    def say(self, line: str) -> None:
        """Print a line."""

    def progress(self, doing: str, name: str) -> Progress:
        """Start a progress display for "downloading", "unpacking" or "checking"; return its update function."""


def compute_digests(path: Path, name: str, digits: int, report: DownloadReport) -> tuple[str, str]:
    """Return the SHA-256 of a file, and the hash (SHA-256 or git SHA-1) with the given number of digits."""
    size, meter = path.stat().st_size, report.progress("checking", name)
    sha256 = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    done = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            sha256.update(chunk)
            if digits == GIT:
                git.update(chunk)
            done += len(chunk)
            meter(done, size)
    return sha256.hexdigest(), git.hexdigest() if digits == GIT else sha256.hexdigest()


def verify(path: Path, name: str, expected: tuple[str, int], destination: Path, report: DownloadReport) -> str:
    """Return the SHA-256 of an intact file; else move it to `destination`.mismatch and raise ModelError."""
    digest, size = expected
    sha256, actual = compute_digests(path, name, len(digest), report)
    if (actual, path.stat().st_size) == expected:
        return sha256
    actual_size, aside = path.stat().st_size, destination.with_name(f"{destination.name}.mismatch")
    path.replace(aside)
    kind = "sha256" if len(digest) == SHA256 else "git sha1"
    raise ModelError(
        f"{name}: {kind} {actual} ({actual_size} bytes), expected {digest} ({size} bytes); "
        f"set aside as {aside} and never loaded; pull again"
    )


def place_file(partial: Path, path: Path) -> None:
    """Move a complete file into place once its bytes are on the disk."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(path)


def partial_path(path: Path, digest: str) -> Path:
    """Return the path of a file until it is verified."""
    return path.with_name(f".{path.name}.{digest[:16]}.partial")


@dataclass(frozen=True)
class DownloadJob:
    """Pending download: the requested file, and the matching file on the hub or in the hub's cache."""

    source: FileSource
    remote: Remote

    @property
    def partial(self) -> Path:
        """Return the path of the partial file."""
        return partial_path(self.source.path, self.remote.digest)

    @property
    def digest(self) -> str:
        """Return the expected hash."""
        return self.source.sha256 or self.remote.digest

    def bytes_needed(self) -> int:
        """Return the additional disk space in bytes; an older file is kept until the new file is complete."""
        record = records.current(self.source.path)
        if self.source.path.is_file() and (record is None or record.sha256 == self.digest):
            return 0
        if self.partial.is_file():
            return max(0, self.remote.size - self.partial.stat().st_size)
        blob = hub.find_cached_blob(self.remote)
        can_link = blob is not None and blob.stat().st_dev == nearest_folder(self.source.path).stat().st_dev
        return 0 if can_link else self.remote.size

    def fetch(self, report: DownloadReport) -> FileRecord:
        """Download and verify the file, move it into place, and return its record."""
        path, partial = self.source.path, self.partial
        with hold_lock(path, report):
            if record := self.source.installed_record():
                return record
            if path.is_file() and (record := self._adopt(report)):
                return record
            if not partial.exists():
                self._take_from_cache(report)
            if not partial.exists() or partial.stat().st_size != self.remote.size:
                hub.transfer(self.remote, partial, report.progress("downloading", self.remote.name))
            sha256 = self._verify(partial, report)
            place_file(partial, path)
            for old in path.parent.glob(f".{path.name}.*.partial"):  # partial files of other revisions
                old.unlink()
            return self._record(sha256)

    def _verify(self, path: Path, report: DownloadReport) -> str:
        """Return the SHA-256 of a file that matches; set another file aside and raise ModelError."""
        return verify(path, self.remote.name, (self.digest, self.remote.size), self.source.path, report)

    def _record(self, sha256: str) -> FileRecord:
        """Write the record of the file in its place, and return it."""
        revision = self.source.revision or hub.MAIN
        return records.add(self.source.path, self.remote.repository, self.remote.commit, revision, sha256)

    def _adopt(self, report: DownloadReport) -> FileRecord | None:
        """Return the record of a matching file, None for an older verified file; set others aside with ModelError."""
        path = self.source.path
        if records.current(path):
            sha256, digest = compute_digests(path, self.remote.name, len(self.digest), report)
            return self._record(sha256) if digest == self.digest else None
        return self._record(self._verify(path, report))

    def _take_from_cache(self, report: DownloadReport) -> None:
        """Link or copy the file from the hub's cache; ignore a cached file with other bytes."""
        blob = hub.find_cached_blob(self.remote)
        if blob is None:
            return
        if compute_digests(blob, self.remote.name, len(self.digest), report)[1] != self.digest:
            report.say(f"{self.remote.name}: the copy in {blob.parent} is damaged; downloading it instead")
            return
        report.say(f"{self.remote.name}: taken from {blob.parent}")
        link_or_copy(blob, self.partial)


def plan(source: FileSource) -> DownloadJob:
    """Look up a file on the hub, or in the hub's cache if offline; raise ModelError if a pin contradicts the hub."""
    assert source.repository
    try:
        remote = hub.look_up(source.repository, source.file, source.revision)
    except hub.Unreachable:
        cached = hub.find_in_cache(source.repository, source.file, source.revision)
        if cached is None:
            raise
        remote = cached
    if source.sha256 and len(remote.digest) == len(source.sha256) and remote.digest != source.sha256:
        raise ModelError(
            f"{remote.name}: the hub has sha256 {remote.digest} at {remote.commit}, but {source.sha256} is pinned; "
            "pin a revision that has it, or correct the entry"
        )
    if source.size not in (None, remote.size):
        raise ModelError(f"{remote.name}: the hub has {remote.size} bytes, but {source.size} are pinned")
    return DownloadJob(source, remote)


def check_space(needed: int, root: Path) -> None:
    """Raise LocaldflashError if the free disk space is too small for the pending downloads."""
    free = shutil.disk_usage(nearest_folder(root)).free
    if needed > free:
        raise LocaldflashError(
            f"the download needs {format_bytes(needed)}, {format_bytes(free)} are free in {root}; "
            "free some space, or set LOCALDFLASH_HOME to another disk"
        )


@contextmanager
def hold_lock(path: Path, report: DownloadReport) -> Iterator[None]:
    """Hold the lock of a file during the context; report if another process holds the lock."""
    create_private(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report.say(f"waiting for another localdflash that is downloading {path.name}")
        while not lock.is_locked:
            create_private(path.parent)
            with suppress(FileNotFoundError):  # `models rm` deleted the folder
                lock.acquire()
    except OSError as error:
        raise LocaldflashError(
            f"{path.parent}: cannot write: {error.strerror}; make it writable, or set LOCALDFLASH_HOME"
        ) from error
    try:
        yield
    finally:
        lock.release()


def link_or_copy(file: Path, destination: Path) -> None:
    """Hard-link a file to a path atomically, or copy it if links are not possible."""
    try:
        os.link(file, destination)
    except OSError:
        temporary = destination.with_name(f"{destination.name}.copy")
        shutil.copyfile(file, temporary)
        temporary.replace(destination)
