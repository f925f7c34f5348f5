"""Write and verify lists of file checksums."""

import hashlib
import hmac
from pathlib import Path

CHUNK_SIZE = 64 * 1024


class ChecksumError(Exception):
    """A checksum file is damaged or cannot be read."""


def file_digest(path, algorithm="sha256"):
    """Return the hexadecimal digest of a file, which is read in chunks so that it
    does not have to fit into memory.
    """
    digest = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(CHUNK_SIZE)
            if not chunk:
                break
            digest.update(chunk)
    return digest.hexdigest()


def write_checksums(root, output, algorithm="sha256"):
    """Write one line with the digest and the name of each file below ``root``."""
    root = Path(root)
    lines = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            lines.append(f"{file_digest(path, algorithm)}  {name}\n")
    Path(output).write_text("".join(lines), encoding="utf-8")
    return len(lines)


def read_checksums(path):
    """Read a checksum file into a dictionary from names to digests."""
    digests = {}
    text = Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        digest, separator, name = line.partition("  ")
        if not separator:
            raise ChecksumError(f"{path}:{number}: expected a digest and a name")
        digests[name] = digest.lower()
    return digests


def verify(root, checksums, algorithm="sha256"):
    """Compare files with their expected digests. Return the names of the files that
    are missing and of those that have changed.
    """
    missing = []
    changed = []
    for name, expected in checksums.items():
        path = Path(root) / name
        if not path.exists():
            missing.append(name)
            continue
        actual = file_digest(path, algorithm)
        if not hmac.compare_digest(actual, expected):
            changed.append(name)
    return missing, changed
