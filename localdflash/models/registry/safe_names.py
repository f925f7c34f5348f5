"""Types of names from a registry or a command line that become parts of paths; for `base/convert`."""

from typing import Annotated

from localdflash.base.convert import pattern

MAX_FILE_CHARS = 191  # with our prefix and suffix (.NAME.digest.partial) a file name stays below 255 characters
_OWNER_OR_NAME = r"\w[\w.-]{0,94}(?<![.-])"
_PORTABLE = r"(?!(?:.*/)?(?i:con|prn|aux|nul|com\d|lpt\d)(?:[./]|\Z))"  # no reserved Windows device name in any folder

Repository = Annotated[
    str,
    pattern(rf"{_PORTABLE}(?!.*(?:--|\.\.)){_OWNER_OR_NAME}/{_OWNER_OR_NAME}", "a repository, owner/name"),
]
FileName = Annotated[
    str,
    pattern(
        rf"{_PORTABLE}(?:{_OWNER_OR_NAME}/){{0,4}}\w[\w.-]{{0,{MAX_FILE_CHARS - 1}}}(?<!\.)",
        "a file inside the repository, without '..', a leading '/' or names reserved by Windows",
    ),
]
Revision = Annotated[str, pattern(r"\w[\w.-]{0,99}(?<![.-])", "a commit or the name of a branch")]
PackageName = Annotated[
    str, pattern(rf"{_PORTABLE}[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,62}}[A-Za-z0-9])?", "the name of a package")
]
Version = Annotated[str, pattern(r"[0-9](?:[0-9A-Za-z.+-]{0,38}[0-9A-Za-z])?", "a package's version")]
