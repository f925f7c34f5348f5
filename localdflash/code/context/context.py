"""What goes into a prompt besides the text around the cursor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ContextKind = Literal["import", "definition", "open", "recent", "edit"]


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """A piece of context. `name` is the path relative to its root; `weight`, from 0 to 1, says what it is worth."""

    kind: ContextKind
    name: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A document as the editor has it; without a path if it was never saved. `language` as in text/syntax."""

    path: Path | None
    name: str
    language: str
    text: str
