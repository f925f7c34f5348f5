"""Packages of npm, pinned by their hash."""

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from localdflash.lab.scripts.editors.debian import CannotFetch


def unpack(name: str, sha512: str, folder: Path) -> Path:
    """The files of a package (`name@version`), unpacked in an empty folder if its hash is the expected one."""
    subprocess.run(["npm", "pack", name, "--silent"], cwd=folder, check=True, stdout=sys.stderr)
    (archive,) = folder.glob("*.tgz")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != sha512:
        raise CannotFetch(f"{name}: not the package that was expected (its SHA-512 differs)")
    shutil.unpack_archive(archive, folder, filter="tar")
    return folder / "package"
