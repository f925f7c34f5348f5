"""State that the chat keeps between two starts: `chat-state.json` in the data folder."""

from dataclasses import asdict, dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import data_folder
from localdflash.tui.themes import DEFAULT, THEMES

_MAX_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class TuiState:
    """Theme, and whether the first-run text was shown."""

    theme: str = DEFAULT
    seen_welcome: bool = False


def state_file() -> Path:
    """Return the path of the state file."""
    return data_folder() / "chat-state.json"


def load() -> TuiState:
    """Return the state saved last; invalid values count as missing."""
    state = read_json(state_file(), _MAX_BYTES)
    theme = state.get("theme")
    if not isinstance(theme, str) or theme not in THEMES:
        theme = DEFAULT
    return TuiState(theme, state.get("seen_welcome") is True)


def save(state: TuiState) -> None:
    """Replace the file; LocaldflashError if that fails."""
    try:
        write_json(state_file(), asdict(state))
    except OSError as error:
        raise LocaldflashError(
            f"{state_file()}: cannot be written: {error.strerror}; the choice is lost when you quit"
        ) from error
