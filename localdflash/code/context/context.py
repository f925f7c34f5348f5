"""Data types for the context of a completion: code other than the text around the cursor."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """Piece of code, from any file, that may go into a prompt."""

    kind: str  # import, definition, open (an open file), recent (one edited recently) or edit (a diff)
    name: str  # path relative to the workspace folder
    text: str
    weight: float = 1.0  # importance, 0 to 1


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Document open in an editor. `path` is None if it was never saved; `language` as in `text/syntax.py`."""

    path: Path | None
    name: str
    language: str
    text: str
