"""Make text safe to show on a terminal. All text from models, files, paths and the clipboard passes through here.

Line feed and tab stay, carriage return is dropped, and other unsafe characters are made visible (`␛`, `⟦U+202E⟧`).
Each character is handled alone, so text may come in any pieces.
"""

import re

_CONTROL_CHARS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2028\u2029\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSAFE = re.compile(f"[{_CONTROL_CHARS}{_BIDIRECTIONAL}{_INVISIBLE}\ud800-\udfff]")


def sanitize(text: str) -> str:
    """Return the text with every unsafe character dropped or made visible; safe text is returned unmodified."""
    return _UNSAFE.sub(_spell_out, text)


def printable(text: str) -> str:
    """Return the text on one line, with unprintable characters, line feeds among them, as Python escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _spell_out(match: re.Match[str]) -> str:
    character = ord(match[0])
    if character == 0x0D:
        return ""
    if character < 0x20:
        return chr(0x2400 + character)
    if character == 0x7F:
        return "\u2421"
    return f"\u27e6U+{character:04X}\u27e7"
