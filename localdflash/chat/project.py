"""A project's instructions in AGENTS.md. They are sent only if the user allowed it: anybody may have written them."""

import os
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import data_folder
from localdflash.chat.roles import read_text

FILE_NAME = "AGENTS.md"
MAX_FILE_BYTES = 32 << 10
MAX_DECISIONS_BYTES = 16 << 20
_ROOT_MARKERS = (".git", ".hg", ".jj")  # one of these is in the root folder of a project


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """AGENTS.md of a project. `allowed`: the user's decision whether it is sent; None: not decided yet."""

    path: Path
    allowed: bool | None

    def text(self) -> str:
        """Return the file's content under a heading. UsageError if the file cannot be read."""
        return f"Instructions of this project ({FILE_NAME}):\n\n{read_text(self.path, MAX_FILE_BYTES)}"


def find_project_file(folder: Path) -> ProjectFile | None:
    """Return the nearest AGENTS.md in this folder or its parents, up to the project's root; None if there is none."""
    folder = Path(os.path.realpath(folder))
    for parent in (folder, *folder.parents):
        if (file := parent / FILE_NAME).is_file():
            return ProjectFile(file, _load_decisions().get(str(file)))
        if any((parent / marker).exists() for marker in _ROOT_MARKERS):
            return None
    return None


def remember_decision(file: ProjectFile, allowed: bool) -> None:
    """Store the user's decision about a file; LocaldflashError if that fails."""
    path = _decisions_path()
    try:
        write_json(path, _load_decisions() | {str(file.path): allowed})
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot be written: {error.strerror}; you will be asked again") from error


def _decisions_path() -> Path:
    return data_folder() / "projects.json"


def _load_decisions() -> dict[str, bool]:
    """Return the decisions by path of AGENTS.md; {} if their file is malformed."""
    decisions = read_json(_decisions_path(), MAX_DECISIONS_BYTES)
    return {path: allowed for path, allowed in decisions.items() if isinstance(allowed, bool)}
