"""The parts of a prompt besides the text around the cursor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ContextKind = Literal["import", "definition", "open", "recent", "edit"]


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """A piece of context. `name` is the path relative to its root; `weight` (0 to 1) is its importance."""

    kind: ContextKind
    name: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open document. It has no path if it was never saved; `language` is one of text/syntax."""

    path: Path | None
    name: str
    language: str
    text: str
