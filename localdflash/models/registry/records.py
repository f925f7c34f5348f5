"""Verification records: a small JSON file `.NAME.verified` next to each downloaded file saves hashing it again.

A file whose size, modification time or inode changed counts as unverified.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.json_file import read_record, write_json

MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class FileRecord:
    """Record of a verified file of a repository or package: its commit or version (`revision`)."""

    repository: str
    revision: str
    asked: str  # requested revision, a commit or branch
    sha256: str
    size: int  # bytes
    mtime_ns: int
    inode: int
    drafter: str | None = None  # hf: name or path of the drafter that the user chose for this target


def record_path(file: Path) -> Path:
    """Return the path of a file's record."""
    return file.with_name(f".{file.name}.verified")


def read(file: Path) -> FileRecord | None:
    """Return the record of a file, or None."""
    return read_record(record_path(file), MAX_FILE_BYTES, FileRecord)


def write(file: Path, record: FileRecord) -> None:
    """Write the record of a file, atomically."""
    write_json(record_path(file), asdict(record))


def add(file: Path, repository: str, revision: str, asked: str, sha256: str) -> FileRecord:
    """Write and return the record of a file that has just been verified."""
    stat = file.stat()
    record = FileRecord(repository, revision, asked, sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    write(file, record)
    return record


def current(file: Path, sha256: str | None = None) -> FileRecord | None:
    """Return the record if the file is unchanged since its verification and has the pinned hash, else None."""
    record = read(file)
    try:
        stat = file.stat()
    except OSError:
        return None
    if record and (record.size, record.mtime_ns, record.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino):
        return record if sha256 in (None, record.sha256) else None
    return None


def check(file: Path) -> None:
    """Raise ModelError if the size of a verified file has changed; files without a record are not checked."""
    record = read(file)
    if record and record.size != (size := file.stat().st_size):
        raise ModelError(
            f"{file}: changed since its verification (expected {record.size} bytes, got {size}); "
            "run `localdflash models pull` again"
        )
