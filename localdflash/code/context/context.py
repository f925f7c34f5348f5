"""The parts of a prompt besides the text around the cursor."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """Piece of other code in a prompt."""

    kind: str  # import, definition, open, recent or edit
    name: str  # path relative to its root
    text: str
    weight: float = 1.0  # importance, 0 to 1


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Open document. It has no path if it was never saved; `language` is one of text/syntax."""

    path: Path | None
    name: str
    language: str
    text: str
