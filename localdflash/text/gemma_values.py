"""Parser of Gemma 4's values in tool calls: JSON without quotes around keys, strings between `<|"|>`."""

import json
import re
from typing import Any

QUOTE = '<|"|>'
_KEY = re.compile(r'\s*([^\s:{}\[\],"]+)\s*:')
_PLAIN = re.compile(r"[^,{}\[\]]+")
_MAX_DEPTH = 64


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object that the whole text spells; None if it is not an object."""
    try:
        value, end = _GemmaParser(text).object(0, 0)
    except (ValueError, IndexError):
        return None
    return value if not text[end:].strip() else None


class _GemmaParser:
    """Parser of one text. Each method returns the value at an offset and the offset after it, or raises ValueError."""

    def __init__(self, text: str) -> None:
        self._text = text

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._expect("{", at)
        while not self._is("}", at):
            key = _KEY.match(self._text, at)
            if not key:
                raise ValueError
            found[key[1].removeprefix(QUOTE).removesuffix(QUOTE)], at = self._value(key.end(), depth)
            at = self._next(at, "}")
        return found, self._expect("}", at)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._expect("[", at)
        while not self._is("]", at):
            value, at = self._value(at, depth)
            found.append(value)
            at = self._next(at, "]")
        return found, self._expect("]", at)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _MAX_DEPTH:
            raise ValueError
        at = self._blank(at)
        if self._text.startswith(QUOTE, at):
            end = self._text.index(QUOTE, at + len(QUOTE))
            return self._text[at + len(QUOTE) : end], end + len(QUOTE)
        if self._is("{", at):
            return self.object(at, depth + 1)
        if self._is("[", at):
            return self._list(at, depth + 1)
        plain = _PLAIN.match(self._text, at)
        if not plain:
            raise ValueError
        word = plain[0].strip()
        try:
            return json.loads(word), plain.end()
        except ValueError:
            return word, plain.end()  # a string that lost its quotes

    def _next(self, at: int, closing: str) -> int:
        """Return the offset after a comma, or that of the closing bracket."""
        return at if self._is(closing, at) else self._expect(",", at)

    def _expect(self, sign: str, at: int) -> int:
        if not self._is(sign, at):
            raise ValueError
        return self._blank(at) + 1

    def _is(self, sign: str, at: int) -> bool:
        return self._text.startswith(sign, self._blank(at))

    def _blank(self, at: int) -> int:
        while self._text[at : at + 1].isspace():
            at += 1
        return at
