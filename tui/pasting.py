"""Decide what to do with pasted text: insert it into the prompt, attach it, or refuse it."""

import re
import shlex
from urllib.parse import unquote, urlsplit

from localdflash.text.sanitize import sanitize

LARGEST = 1_000_000  # characters that are taken at all
MOST_LINES = 30  # more, or more characters, are attached
MOST_CHARACTERS = 2_000
_LONGEST_PATH = 4_096
_OTHER_ENDS = re.compile("\r\n|[\r\u2028\u2029]")


def is_long(text: str) -> bool:
    """Whether a paste is attached rather than inserted."""
    return len(text) > MOST_CHARACTERS or len(line_ends(text).splitlines()) > MOST_LINES


def line_ends(text: str) -> str:
    """Replace carriage returns, which terminals send for line ends; text that has line feeds stays as it is."""
    return text if "\n" in text else text.replace("\r", "\n")


def for_prompt(text: str) -> tuple[str, int]:
    """The text as it can be inserted, and how many invisible characters had to be spelled out."""
    text = _OTHER_ENDS.sub("\n", text)
    safe = sanitize(text)
    return safe, 0 if safe == text else sum(sanitize(character) != character for character in text)


def dropped_path(text: str) -> str | None:
    """The path that a terminal pastes for a file dropped on it: quoted, escaped or a file:// address."""
    text = text.strip()
    if not text or len(text) > _LONGEST_PATH or "\n" in text or "\r" in text:
        return None
    if text.startswith("file://"):
        path = unquote(urlsplit(text).path)
    else:
        try:
            parts = shlex.split(text)
        except ValueError:
            return None
        path = parts[0] if len(parts) == 1 else text
    return path if path.startswith("/") and "\0" not in path else None
