"""Read TOML that people write: every error is a ModelError that names file, line and key.

`tomllib` reports no line for a value, so an error splits the text into statements and parses them one by one.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model

MAX_BYTES = 1 << 20
MAX_DEPTH = 64  # open brackets and dots of one statement
MAX_SHOWN_CHARS = 120  # of a quotation in an error

T = TypeVar("T")
Keys = tuple[str | int, ...]  # path from the root to a value: names, and indices in arrays of tables

# Strings, comments, brackets and line ends of valid TOML decide where a statement ends.
_TOKEN = re.compile(
    r'"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5}|" r'"(?:\\.|[^"\\])*"|' r"'[^']*'|#[^\n]*|[\[\]{}\n]", re.DOTALL
)


class TomlTable:
    """Table of a file with unchecked values."""

    def __init__(self, file: Path, text: str, where: Keys, values: Mapping[str, object]) -> None:
        self.file, self._text, self._where, self._values = file, text, where, values

    def only(self, *known: str) -> None:
        """Refuse keys that are not known."""
        for key in self._values:
            if key not in known:
                raise self.error(key, f"unknown key{did_you_mean(key, known)}")

    def required(self, key: str, convert: Callable[[object], T]) -> T:
        """Convert the value of a key that must be there."""
        value = self.optional(key, convert)
        if value is None:
            raise self.error(None, f"missing key {key!r}")
        return value

    def optional(self, key: str, convert: Callable[[object], T]) -> T | None:
        """Convert the value of a key; None if it is not there."""
        if key not in self._values:
            return None
        try:
            return convert(self._values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def table(self, key: str) -> "TomlTable | None":
        """Return the table under a key; None if it is not there."""
        values = self.optional(key, _dictionary)
        return None if values is None else TomlTable(self.file, self._text, (*self._where, key), values)

    def tables(self, key: str) -> "list[TomlTable]":
        """Return the tables `[[key]]`, in file order."""
        found = self.optional(key, listed(_dictionary)) or ()
        return [TomlTable(self.file, self._text, (*self._where, key, i), values) for i, values in enumerate(found)]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def line(self, key: str | None) -> int:
        """Return the line of a key, or of the table itself."""
        return key_lines(self._text)[self._where if key is None else (*self._where, key)]

    def error(self, key: str | None, message: str) -> ModelError:
        """Return the error to raise about a key, or about the table."""
        parts = (*self._where, key) if key is not None else self._where
        names = ".".join(part if part.isprintable() else repr(part) for part in parts if isinstance(part, str))
        return ModelError(f"{self.file}:{self.line(key)}: {_cut(names) + ': ' if names else ''}{message}")


def read_toml(file: Path) -> TomlTable:
    """Read the root table of a file (UTF-8, with or without a byte order mark, at most 1 MiB)."""
    with open_model(file) as (stream, size):
        if size > MAX_BYTES:
            raise ModelError(f"{file}: has {size} bytes; at most {MAX_BYTES} are read")
        data = stream.read(MAX_BYTES)
    try:
        text = data.decode("utf-8-sig")  # editors on Windows begin files with a byte order mark
        _check_nesting(file, text)
        return TomlTable(file, text, (), tomllib.loads(text))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{file}:{line}: not UTF-8; save the file as UTF-8") from error
    except ValueError as error:
        raise _syntax_error(file, text, str(error)) from error


def text(value: object) -> str:
    """Take a line of printable text."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {_kind(value)}")
    if not value.strip() or not value.isprintable() or len(value) > 300:
        raise ValueError("expected one line of printable text, at most 300 characters")
    return value


def matching(pattern: str, expected: str) -> Callable[[object], str]:
    """Take text that matches a whole pattern; `expected` describes it."""
    whole_pattern = re.compile(pattern, re.ASCII)

    def convert(value: object) -> str:
        if not whole_pattern.fullmatch(text(value)):
            raise ValueError(f"expected {expected}, found {value!r}")
        return str(value)

    return convert


def one_of(*choices: str) -> Callable[[object], str]:
    """Take one of a few words."""

    def convert(value: object) -> str:
        if text(value) not in choices:
            hint = did_you_mean(str(value), choices)
            raise ValueError(f"expected one of {', '.join(choices)}, found {value!r}{hint}")
        return str(value)

    return convert


def whole(low: int, high: int) -> Callable[[object], int]:
    """Take a whole number in a range, ends included."""

    def convert(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"expected a whole number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"expected {low} to {high}, found {_cut(str(value))}")
        return value

    return convert


def number(low: float, high: float) -> Callable[[object], float]:
    """Take a number in a range, ends included."""

    def convert(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"expected a number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"expected {low:g} to {high:g}, found {_cut(str(value))}")
        return float(value)

    return convert


def listed(convert: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """Take an array whose elements all convert."""

    def convert_all(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError(f"expected an array, found {_kind(value)}")
        return tuple(convert(element) for element in value)

    return convert_all


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, or nothing when none is near."""
    near = difflib.get_close_matches(word.lower(), known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def key_lines(text: str) -> dict[Keys, int]:
    """Find the line on which every key of a valid document is first written, tables and arrays of tables included."""
    lines: dict[Keys, int] = {(): 1}
    newest: dict[Keys, int] = {}  # the last index of every array of tables
    table: Keys = ()
    for line, statement in _statements(text):
        tree = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _enter(tree, line, lines, newest)
        else:
            _note(tree, table, line, lines)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Cut a valid document into statements, each with the line it starts on; a comment or a blank line is one too."""
    line, start, depth = 1, 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and depth == 0:
            yield line, text[start : token.end()]
            line += text.count("\n", start, token.end())
            start = token.end()
    yield line, text[start:]


def _enter(tree: Any, line: int, lines: dict[Keys, int], newest: dict[Keys, int]) -> Keys:
    """Note the tables that a header opens; return the innermost. `[a.b]` below `[[a]]` is in the newest a."""
    where: Keys = ()
    while tree:
        ((key, tree),) = tree.items()
        where = (*where, key)
        lines.setdefault(where, line)
        if isinstance(tree, list):
            newest[where] = newest.get(where, -1) + 1
            tree = tree[0]
        if where in newest:
            where = (*where, newest[where])
            lines.setdefault(where, line)
    return where


def _note(value: object, where: Keys, line: int, lines: dict[Keys, int]) -> None:
    lines.setdefault(where, line)
    if isinstance(value, dict):
        for key, inner in value.items():
            _note(inner, (*where, key), line, lines)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _note(inner, (*where, i), line, lines)


def _syntax_error(file: Path, text: str, message: str) -> ModelError:
    """Take the line from the end of tomllib's message; a number of thousands of digits has none."""
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if not place:
        return ModelError(f"{file}: not valid TOML: {message}")
    line = int(place[1]) if place[1] else text.count("\n") + 1
    return ModelError(f"{file}:{line}: not valid TOML: {_cut(message[: place.start()])}")


def _check_nesting(file: Path, text: str) -> None:
    """Refuse deep nesting, brackets in brackets or `a.b.c`, before anything is parsed: tomllib would recurse."""
    depth = dots = start = 0
    for token in _TOKEN.finditer(text + "\n"):
        dots += text.count(".", start, token.start())
        depth = max(0, depth + (token[0] in "[{") - (token[0] in "]}"))
        if depth + dots > MAX_DEPTH:
            raise ModelError(f"{file}:{text.count(chr(10), 0, token.start()) + 1}: nested too deeply")
        if token[0] == "\n" and depth == 0:
            dots = 0
        start = token.end()


def _dictionary(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a table, found {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    names |= {dict: "a table", list: "an array"}
    return names.get(type(value), "a date or time")


def _cut(shown: str) -> str:
    return shown if len(shown) <= MAX_SHOWN_CHARS else shown[: MAX_SHOWN_CHARS - 1] + "…"
