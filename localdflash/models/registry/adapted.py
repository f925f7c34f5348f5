"""Merge a base model and a LoRA adapter into a target file. The file appears complete and verified, or not at all.

    base + adapter  ->  .NAME.DIGEST.partial  ->  hash verified  ->  NAME, and beside it its record

The merged bytes are identical on every machine. A file with other bytes is set aside and never loaded.
"""

from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.models.registry import records
from localdflash.models.registry.download import DownloadReport, locked, place_file, verified
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.records import FileRecord


@dataclass(frozen=True)
class WantedMerge:
    """Target file to be merged after the download of its base, with its base and LoRA adapter."""

    name: str
    base: Path
    adapter: Path
    sha256: str
    size: int
    path: Path  # where it goes

    def fulfilled(self) -> FileRecord | None:
        """Return the record of the file if the file is installed and verified against the pins, else None."""
        return records.current(self.path, self.sha256)

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes; an older file is kept until the new file is complete."""
        return self.size


def fetch(wanted: WantedMerge, report: DownloadReport) -> FileRecord:
    """Merge and verify the file, move it into place, and return its record."""
    from localdflash.models.weights.low_rank import merge

    partial = wanted.path.with_name(f".{wanted.path.name}.{wanted.sha256[:16]}.partial")
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
        verified(partial, wanted.name, (wanted.sha256, wanted.size), wanted.path, report)
        place_file(partial, wanted.path)
        base = wanted.base.name
        return records.add(wanted.path, wanted.adapter.name, base, base, wanted.sha256)
