"""Validate names from a registry or a command line before they become parts of paths.

Only ASCII letters, digits, '.', '_' and '-' are allowed. Empty, hidden and '..' parts, drives and reserved Windows
names are rejected. Every function returns the value as text, or raises ValueError with the expected form.
"""

import re
from pathlib import PurePosixPath

from localdflash.base.files.strict_toml import matching

LONGEST_FILE = 191  # characters of a file's own name: our names beside it (.NAME.digest.partial) stay below 255

_OWNER_OR_NAME = r"\w[\w.-]{0,94}(?<![.-])"
_repository = matching(rf"(?!.*(?:--|\.\.)){_OWNER_OR_NAME}/{_OWNER_OR_NAME}", "a repository, owner/name")
_file = matching(
    rf"(?:{_OWNER_OR_NAME}/){{0,4}}\w[\w.-]{{0,{LONGEST_FILE - 1}}}(?<!\.)",
    "a file inside the repository, without '..' or a leading '/'",
)
_revision = matching(r"\w[\w.-]{0,99}(?<![.-])", "a commit or the name of a branch")
_package = matching(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", "the name of a package")
_version = matching(r"[0-9](?:[0-9A-Za-z.+-]{0,38}[0-9A-Za-z])?", "a package's version")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.ASCII | re.IGNORECASE)


def repository(value: object) -> str:
    """Check the name of a Hugging Face repository, owner/name."""
    return _portable(_repository(value))


def file_in_repository(value: object) -> str:
    """Check the path of a file inside a repository, at most four folders deep."""
    return _portable(_file(value))


def revision(value: object) -> str:
    """Check a commit or the name of a branch or tag."""
    return _revision(value)


def package(value: object) -> str:
    """Check the name of a package, as an index has it."""
    return _portable(_package(value))


def version(value: object) -> str:
    """Check a package's version: one release, no range."""
    return _version(value)


def _portable(name: str) -> str:
    """Raise ValueError for reserved Windows device names, with any extension, in any folder."""
    for part in PurePosixPath(name).parts:
        if _DEVICE.fullmatch(part.split(".")[0]):
            raise ValueError(f"expected a name that Windows can hold, found {part!r}, which it reserves")
    return name
