"""Parser of Gemma 4's values in tool calls: JSON without quotes around keys, strings between `<|"|>`."""

import json
import re
from typing import Any

QUOTE = '<|"|>'
_BLANKS = re.compile(r"\s*")
_KEY = re.compile(r'([^\s:{}\[\],"]+)\s*:')
_PLAIN = re.compile(r"[^,{}\[\]]+")
_MAX_DEPTH = 64


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object that the whole text spells; None if it is not an object."""
    try:
        value, end = _value(text, 0, -1)
    except (ValueError, IndexError):
        return None
    return value if isinstance(value, dict) and not text[end:].strip() else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at an offset and the offset after it; ValueError or IndexError if there is none."""
    if depth > _MAX_DEPTH:
        raise ValueError
    at = _skip_blanks(text, at)
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text[at] in "{[":
        return _members(text, at, depth)
    plain = _PLAIN.match(text, at)
    if not plain:
        raise ValueError
    word = plain[0].strip()
    try:
        return json.loads(word), plain.end()
    except ValueError:
        return word, plain.end()  # a string that lost its quotes


def _members(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the object or list that opens at an offset, and the offset after it."""
    members: list[Any] = []
    keys: list[str] = []
    closing = "}" if text[at] == "{" else "]"
    at = _skip_blanks(text, at + 1)
    while text[at] != closing:
        if closing == "}":
            key = _KEY.match(text, at)
            if not key:
                raise ValueError
            keys.append(key[1].removeprefix(QUOTE).removesuffix(QUOTE))
            at = key.end()
        value, at = _value(text, at, depth + 1)
        members.append(value)
        at = _skip_blanks(text, at)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
        elif text[at] != closing:
            raise ValueError
    return dict(zip(keys, members, strict=True)) if closing == "}" else members, at + 1


def _skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
