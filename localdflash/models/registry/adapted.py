"""Merge a base model and a LoRA adapter into a target file. The file appears complete and verified, or not at all.

    base + adapter  ->  .NAME.DIGEST.partial  ->  hash verified  ->  NAME, and beside it its record

The merged bytes are identical on every machine. A file with other bytes is set aside and never loaded.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.models.registry import records
from localdflash.models.registry.download import DownloadReport, locked, verified
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.pair_entry import Adapted, FileSource
from localdflash.models.registry.records import FileRecord


@dataclass(frozen=True)
class WantedMerge:
    """Target file to be merged, with its base and LoRA adapter."""

    name: str
    base: Path
    adapter: Path
    sha256: str
    size: int
    path: Path  # where it goes

    @classmethod
    def of(cls, source: FileSource, made_of: Adapted) -> "WantedMerge":
        """Return the merge that a registry entry describes; its hash and size are always pinned."""
        assert source.sha256
        assert source.size
        return cls(source.name, made_of.base.path, Path(made_of.adapter), source.sha256, source.size, source.path)

    def fulfilled(self) -> FileRecord | None:
        """Return the record of the file if the file is installed and verified against the pins, else None."""
        record = records.current(self.path)
        return record if record and record.sha256 == self.sha256 else None


@dataclass(frozen=True)
class MergeJob:
    """Pending merge, which runs after the download of its base."""

    wanted: WantedMerge

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes; an older file is kept until the new file is complete."""
        return self.wanted.size


def fetch(job: MergeJob, report: DownloadReport) -> FileRecord:
    """Merge and verify the file, move it into place, and return its record."""
    from localdflash.models.weights.low_rank import merge

    wanted = job.wanted
    partial = wanted.path.with_name(f".{wanted.path.name}.{wanted.sha256[:16]}.partial")
    aside = wanted.path.with_name(f"{wanted.path.name}.mismatch")
    with locked(wanted.path, report):
        if record := wanted.fulfilled():
            return record
        report.say(f"{wanted.name}: merged from {wanted.base.name} and {wanted.adapter.name}")
        try:
            merge(wanted.base, wanted.adapter, partial)
        except OSError as error:
            for left in wanted.path.parent.glob(f"{partial.stem}.*"):
                left.unlink()
            if error.errno not in DISK_FULL:
                raise
            raise LocaldflashError(
                f"{wanted.name}: the disk takes no more ({error.strerror}); make room and pull again"
            ) from error
        verified(partial, wanted.name, (wanted.sha256, wanted.size), aside, report)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(wanted.path)
        stat, base = wanted.path.stat(), wanted.base.name
        place = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        record = FileRecord(wanted.adapter.name, base, base, wanted.sha256, *place)
        records.write(wanted.path, record)
        return record
