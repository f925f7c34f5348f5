"""Reads TOML that users write: every error is a ModelError that names file, line and key.

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

Value = TypeVar("Value")
Keys = tuple[str | int, ...]  # path from the root to a value: names, and indices in arrays of tables

# Strings, comments, brackets and line ends of valid TOML decide where a statement ends.
_TOKEN = re.compile(
    r'"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5}|" r'"(?:\\.|[^"\\])*"|' r"'[^']*'|#[^\n]*|[\[\]{}\n]", re.DOTALL
)


class TomlTable:
    """Table of a TOML file, whose values are converted and checked when they are read."""

    def __init__(self, file: Path, text: str, path: Keys, values: Mapping[str, object]) -> None:
        self.file, self._text, self._path, self._values = file, text, path, values

    def reject_unknown_keys(self, *known: str) -> None:
        """Raise ModelError for a key that is not among `known`."""
        for key in self._values:
            if key not in known:
                raise self.error(key, f"unknown key{did_you_mean(key, known)}")

    def required(self, key: str, convert: Callable[[object], Value]) -> Value:
        """Return the converted value of a key; ModelError if it is missing."""
        value = self.optional(key, convert)
        if value is None:
            raise self.error(None, f"missing key {key!r}")
        return value

    def optional(self, key: str, convert: Callable[[object], Value]) -> Value | None:
        """Return the converted value of a key; None if it is missing."""
        if key not in self._values:
            return None
        try:
            return convert(self._values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def table(self, key: str) -> "TomlTable | None":
        """Return the table under a key; None if it is missing."""
        values = self.optional(key, _dictionary)
        return None if values is None else TomlTable(self.file, self._text, (*self._path, key), values)

    def tables(self, key: str) -> "list[TomlTable]":
        """Return the tables `[[key]]`, in file order."""
        found = self.optional(key, array_of(_dictionary)) or ()
        return [TomlTable(self.file, self._text, (*self._path, key, i), values) for i, values in enumerate(found)]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def line(self, key: str | None) -> int:
        """Return the line of a key, or of the table itself."""
        return key_lines(self._text)[self._path if key is None else (*self._path, key)]

    def error(self, key: str | None, message: str) -> ModelError:
        """Return the error to raise about a key, or about the table."""
        parts = (*self._path, key) if key is not None else self._path
        names = ".".join(part if part.isprintable() else repr(part) for part in parts if isinstance(part, str))
        return ModelError(f"{self.file}:{self.line(key)}: {_shorten(names) + ': ' if names else ''}{message}")


def read_toml(file: Path) -> TomlTable:
    """Read the root table of a file (UTF-8, with or without a byte order mark, at most 1 MiB)."""
    with open_model(file) as (stream, size):
        if size > MAX_BYTES:
            raise ModelError(f"{file}: too large (expected at most {MAX_BYTES} bytes, got {size})")
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
    """Return a value that is one line of printable text; ValueError for others."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {_kind(value)}")
    if not value.strip() or not value.isprintable() or len(value) > 300:
        raise ValueError("expected one line of printable text, at most 300 characters")
    return value


def matching(pattern: str, expected: str) -> Callable[[object], str]:
    """Return a converter for text that matches the whole pattern; `expected` describes it in errors."""
    compiled = re.compile(pattern, re.ASCII)

    def convert(value: object) -> str:
        if not compiled.fullmatch(text(value)):
            raise ValueError(f"expected {expected}, found {value!r}")
        return str(value)

    return convert


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a converter for one of a few words."""

    def convert(value: object) -> str:
        if text(value) not in choices:
            hint = did_you_mean(str(value), choices)
            raise ValueError(f"expected one of {', '.join(choices)}, found {value!r}{hint}")
        return str(value)

    return convert


def integer(low: int, high: int) -> Callable[[object], int]:
    """Return a converter for integers in a range, ends included."""

    def convert(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"expected a whole number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"expected {low} to {high}, found {_shorten(str(value))}")
        return value

    return convert


def number(low: float, high: float) -> Callable[[object], float]:
    """Return a converter for numbers in a range, ends included."""

    def convert(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"expected a number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"expected {low:g} to {high:g}, found {_shorten(str(value))}")
        return float(value)

    return convert


def array_of(convert: Callable[[object], Value]) -> Callable[[object], tuple[Value, ...]]:
    """Return a converter for arrays; `convert` converts each element."""

    def convert_all(value: object) -> tuple[Value, ...]:
        if not isinstance(value, list):
            raise ValueError(f"expected an array, found {_kind(value)}")
        return tuple(convert(element) for element in value)

    return convert_all


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, "" if none is near."""
    near = difflib.get_close_matches(word.lower(), known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line of every key's first mention in a valid document, tables and arrays of tables included."""
    lines: dict[Keys, int] = {(): 1}
    last_index: dict[Keys, int] = {}  # of every array of tables
    table: Keys = ()
    for line, statement in _statements(text):
        tree = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _record_header(tree, line, lines, last_index)
        else:
            _record_lines(tree, table, line, lines)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a valid document with their first lines; a comment or blank line counts as one."""
    line, start, depth = 1, 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and depth == 0:
            yield line, text[start : token.end()]
            line += text.count("\n", start, token.end())
            start = token.end()
    yield line, text[start:]


def _record_header(tree: Any, line: int, lines: dict[Keys, int], last_index: dict[Keys, int]) -> Keys:
    """Record the lines of the tables that a header opens; return the innermost. `[a.b]` belongs to the last `[[a]]`."""
    path: Keys = ()
    while tree:
        ((key, tree),) = tree.items()
        path = (*path, key)
        lines.setdefault(path, line)
        if isinstance(tree, list):
            last_index[path] = last_index.get(path, -1) + 1
            tree = tree[0]
        if path in last_index:
            path = (*path, last_index[path])
            lines.setdefault(path, line)
    return path


def _record_lines(value: object, path: Keys, line: int, lines: dict[Keys, int]) -> None:
    lines.setdefault(path, line)
    if isinstance(value, dict):
        for key, inner in value.items():
            _record_lines(inner, (*path, key), line, lines)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _record_lines(inner, (*path, i), line, lines)


def _syntax_error(file: Path, text: str, message: str) -> ModelError:
    """Return an error with the line from the end of tomllib's message; an overlong integer's message has none."""
    location = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if not location:
        return ModelError(f"{file}: not valid TOML: {message}")
    line = int(location[1]) if location[1] else text.count("\n") + 1
    return ModelError(f"{file}:{line}: not valid TOML: {_shorten(message[: location.start()])}")


def _check_nesting(file: Path, text: str) -> None:
    """Raise ModelError for deep nesting (brackets or `a.b.c`) before tomllib parses the text, because it recurses."""
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


def _shorten(quoted: str) -> str:
    return quoted if len(quoted) <= MAX_SHOWN_CHARS else quoted[: MAX_SHOWN_CHARS - 1] + "…"
