"""The record of a downloaded file: a small JSON file beside it, `.NAME.verified`, written after verification.

Because of it a file is hashed only once. The record says which file was hashed (size, time of change, inode): a file
changed or exchanged since is not the one that was verified. A record that cannot be read counts as none.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.json_file import read_json, write_json

MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class FileRecord:
    """A verified file. `revision` is the commit it comes from, `asked` what was asked for, perhaps a branch.

    A file of a package has the package's name for a repository, and its version for both.
    """

    repository: str
    revision: str
    asked: str
    sha256: str
    size: int  # bytes
    mtime_ns: int
    inode: int
    drafter: str | None = None  # of a target that was fetched with a drafter of the user's choice: its hf: name or path

    @property
    def of_hub(self) -> bool:
        """Return whether it is from a repository of the hub, whose names have an owner."""
        return "/" in self.repository


def record_path(file: Path) -> Path:
    """Return the path of a file's record."""
    return file.with_name(f".{file.name}.verified")


def read(file: Path) -> FileRecord | None:
    """Return the record of a file, or None."""
    try:
        record = FileRecord(**read_json(record_path(file), MAX_FILE_BYTES))
    except TypeError:
        return None
    kinds = (str, str, str, str, int, int, int, str if record.drafter is not None else type(None))
    sound = all(type(value) is kind for value, kind in zip(asdict(record).values(), kinds, strict=True))
    return record if sound else None


def write(file: Path, record: FileRecord) -> None:
    """Write the record of a file, atomically."""
    write_json(record_path(file), asdict(record))


def current(file: Path) -> FileRecord | None:
    """Return the record, if the file is still the one that was verified."""
    record = read(file)
    try:
        stat = file.stat()
    except OSError:
        return None
    if record and (record.size, record.mtime_ns, record.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino):
        return record
    return None


def check(file: Path) -> None:
    """Raise ModelError if a verified file has another size now; a file without a record is the user's own."""
    record = read(file)
    if record and record.size != (size := file.stat().st_size):
        raise ModelError(
            f"{file}: has {size} bytes, but {record.size} were verified: it was changed or cut; "
            "run `localdflash models pull` again"
        )
