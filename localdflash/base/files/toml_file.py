"""Read TOML files that users write, limited in size and nesting. `base/convert` checks the values."""

import re
import tomllib
from pathlib import Path
from typing import Any

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model

MAX_BYTES = 1 << 20
MAX_DEPTH = 64  # open brackets and dots of one statement
MAX_PROBLEM_CHARS = 200

# Strings, comments, brackets and line ends of valid TOML decide where a statement ends.
_TOKEN = re.compile(
    r'"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5}|" r'"(?:\\.|[^"\\])*"|' r"'[^']*'|#[^\n]*|[\[\]{}\n]", re.DOTALL
)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the root table of a file (UTF-8, at most 1 MiB); ModelError if it is unusable."""
    with open_model(file) as (stream, size):
        if size > MAX_BYTES:
            raise ModelError(f"{file}: too large (expected at most {MAX_BYTES} bytes, got {size})")
        data = stream.read(MAX_BYTES)
    try:
        text = data.decode("utf-8-sig")  # editors on Windows begin files with a byte order mark
        _check_nesting(text)
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{file}: not UTF-8 (at line {line}); save the file as UTF-8") from error
    except ValueError as error:
        raise ModelError(f"{file}: not valid TOML: {str(error)[:MAX_PROBLEM_CHARS]}") from error


def _check_nesting(text: str) -> None:
    """Raise ValueError for deep nesting (brackets or `a.b.c`), which would overflow the stack of tomllib's parser."""
    depth = dots = start = 0
    for token in _TOKEN.finditer(text + "\n"):
        dots += text.count(".", start, token.start())
        depth = max(0, depth + (token[0] in "[{") - (token[0] in "]}"))
        if depth + dots > MAX_DEPTH:
            raise ValueError(f"nested too deeply (at line {text.count(chr(10), 0, token.start()) + 1})")
        if token[0] == "\n" and depth == 0:
            dots = 0
        start = token.end()
