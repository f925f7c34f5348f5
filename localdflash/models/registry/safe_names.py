"""Validates names from a registry or a command line before they become parts of paths.

Every function returns the value as text, or raises ValueError with the expected form.
"""

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from localdflash.base.files.strict_toml import matching

MAX_FILE_CHARS = 191  # of a file name: with our prefix and suffix (.NAME.digest.partial) it stays below 255
_OWNER_OR_NAME = r"\w[\w.-]{0,94}(?<![.-])"
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.ASCII | re.IGNORECASE)


def _portable(convert: Callable[[object], str]) -> Callable[[object], str]:
    """Return a converter that also rejects reserved Windows device names, with any extension, in any folder."""

    def convert_portable(value: object) -> str:
        name = convert(value)
        for part in PurePosixPath(name).parts:
            if _DEVICE.fullmatch(part.split(".")[0]):
                raise ValueError(f"expected a name allowed on Windows, found the reserved {part!r}")
        return name

    return convert_portable


repository = _portable(matching(rf"(?!.*(?:--|\.\.)){_OWNER_OR_NAME}/{_OWNER_OR_NAME}", "a repository, owner/name"))
file_in_repository = _portable(
    matching(
        rf"(?:{_OWNER_OR_NAME}/){{0,4}}\w[\w.-]{{0,{MAX_FILE_CHARS - 1}}}(?<!\.)",
        "a file inside the repository, without '..' or a leading '/'",
    )
)
revision = matching(r"\w[\w.-]{0,99}(?<![.-])", "a commit or the name of a branch")
package = _portable(matching(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", "the name of a package"))
version = matching(r"[0-9](?:[0-9A-Za-z.+-]{0,38}[0-9A-Za-z])?", "a package's version")
