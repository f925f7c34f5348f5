"""Escape sequences in the output for a terminal, parsed by ECMA-48 (sections 5.3 to 5.6 and 8.3).

An independent oracle: nothing here is shared with the sanitizer.
"""

import re
import unicodedata
from dataclasses import dataclass

_STRING = {"P": "DCS", "]": "OSC", "X": "SOS", "^": "PM", "_": "APC"}
_PIECES = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|\x1b(?P<string>[P\]X^_])(?P<body>[^\x07\x1b\x9c]*)(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?P<escape>[ -/]*[0-~])"
    r"|(?P<alone>[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff])"
)


@dataclass(frozen=True)
class Sequence:
    """An escape sequence; `kind` is its function without numbers, so that two runs can be compared."""

    kind: str
    text: str


def sequences(data: bytes) -> list[Sequence]:
    """Return the sequences, and the control characters other than tab, line feed and carriage return that stand alone.

    A byte that is not UTF-8 counts as a control character: a terminal without UTF-8 reads it as C1.
    """
    return [Sequence(_kind(found), found[0]) for found in _PIECES.finditer(data.decode("utf-8", "surrogateescape"))]


def invisible(text: str) -> set[str]:
    """Return the invisible and direction-changing characters of a text: Unicode's Cf, Zl, Zp and tags."""
    return {char for char in text if unicodedata.category(char) in ("Cf", "Zl", "Zp") or 0xE0000 <= ord(char) < 0xE1000}


def _kind(found: re.Match[str]) -> str:
    if final := found["final"]:
        private = re.sub(r"[0-;]", "", found["parameters"])
        number = found["parameters"] if final in "hlpquty" else ""  # modes and queries: the number is the function
        return f"CSI {private or ''}{number.strip(private)}{found['between']}{final}"
    if found["string"]:
        return f"{_STRING[found['string']]} {found['body'].partition(';')[0]}"
    if found["escape"]:
        return f"ESC {found['escape']}"
    return f"alone {ord(found['alone']):02X}"
