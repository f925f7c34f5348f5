"""Reads values as Gemma 4 writes them in tool calls: JSON without quotes around keys, strings between `<|"|>`."""

import json
import re
from typing import Any

QUOTE = '<|"|>'
_KEY = re.compile(r'\s*([^\s:{}\[\],"]+)\s*:')
_PLAIN = re.compile(r"[^,{}\[\]]+")
_DEEPEST = 64


def read_object(text: str) -> dict[str, Any] | None:
    """The object that a text is, as a whole; None if it is none."""
    try:
        value, end = _Values(text).object(0, 0)
    except (ValueError, IndexError):
        return None
    return value if not text[end:].strip() else None


class _Values:
    """One text; each method returns a value that begins at a place, and where it ends. ValueError if there is none."""

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
        if depth > _DEEPEST:
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
        """The place after a comma, or that of what closes."""
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
