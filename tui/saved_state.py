"""What the chat remembers between two starts: `chat-state.json` in the data folder.

A missing or broken file counts as empty, and so does each value in it that makes no sense.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import create_private, data_folder
from localdflash.tui.themes import DEFAULT, THEMES


@dataclass(frozen=True, slots=True)
class TuiState:
    """Theme and first-run flag, kept between starts. `seen_welcome`: the first-run text was shown."""

    theme: str = DEFAULT
    seen_welcome: bool = False


def state_file() -> Path:
    """Return the path of the state file, without touching the file."""
    return data_folder() / "chat-state.json"


def load() -> TuiState:
    """Return the state saved last."""
    try:
        found = json.loads(state_file().read_bytes())
    except (OSError, ValueError, RecursionError):
        return TuiState()
    if not isinstance(found, dict):
        return TuiState()
    theme = found.get("theme")
    if not isinstance(theme, str) or theme not in THEMES:
        theme = DEFAULT
    return TuiState(theme, found.get("seen_welcome") is True)


def save(state: TuiState) -> None:
    """Replace the file atomically, readable by this user alone; LocaldflashError if that fails."""
    path = state_file()
    folder = create_private(path.parent)
    unfinished = ""
    try:
        handle, unfinished = tempfile.mkstemp(prefix=f"{path.name}.", dir=folder)
        with open(handle, "w", encoding="ascii") as file:
            json.dump(asdict(state), file)
        os.replace(unfinished, path)
    except OSError as error:
        if unfinished:
            Path(unfinished).unlink(missing_ok=True)
        raise LocaldflashError(
            f"{path}: cannot be written: {error.strerror}; this choice lasts until you leave"
        ) from error
