"""Check the bytes of a file that came from elsewhere, and say how far that is. Others than wanted are set aside."""

import hashlib
from pathlib import Path
from typing import Protocol

from localdflash.base.errors import ModelError
from localdflash.models.registry.hub import Progress

CHUNK = 4 << 20  # bytes hashed at a time
SHA256, GIT = 64, 40  # digits of SHA-256 and of git's SHA-1


class DownloadReport(Protocol):
    """Shows the progress of a download."""

    def say(self, line: str) -> None:
        """Show one line."""

    def progress(self, doing: str, name: str) -> Progress:
        """Begin a stretch of bytes, "downloading", "unpacking" or "checking"; return the meter to move."""


def digests(path: Path, name: str, digits: int, report: DownloadReport) -> tuple[str, str]:
    """The SHA-256 of a file, and its hash of the kind that has so many digits."""
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


def verified(path: Path, name: str, expected: tuple[str, int], aside: Path, report: DownloadReport) -> str:
    """The SHA-256 of a file with this hash and size; another one goes to `aside`: ModelError with both hashes."""
    digest, size = expected
    sha256, found = digests(path, name, len(digest), report)
    if (found, path.stat().st_size) == expected:
        return sha256
    found_size = path.stat().st_size
    path.replace(aside)
    kind = "sha256" if len(digest) == SHA256 else "git sha1"
    raise ModelError(
        f"{name}: {kind} {found} ({found_size} bytes), expected {digest} ({size} bytes); "
        f"set aside as {aside}, never loaded: pull again"
    )
